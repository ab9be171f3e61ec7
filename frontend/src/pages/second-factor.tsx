import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, once, refresh, take } from "../api/client";
import { Refusal } from "../show";
import { Button, Field, Input } from "../ui";

/** SecondFactor sets one-time passwords up. Whoever needs one sees nothing else until it is done. */
export function SecondFactor() {
  const [code, setCode] = useState("");
  const begin = useMutation({ mutationFn: () => take(api.POST("/v1/me/second-factor", { params: { header: once() } })) });
  const confirm = useMutation({
    mutationFn: () => take(api.POST("/v1/me/second-factor/confirmation", { params: { header: once() }, body: { code } })),
  });
  const submit = (event: FormEvent) => { event.preventDefault(); confirm.mutate(); };
  return (
    <main id="main" tabIndex={-1} className="mx-auto flex max-w-md flex-col gap-4 px-4 py-8">
      <title>Second factor · Leasehold</title>
      <h1 className="text-2xl font-bold">Protect your log-in</h1>
      <p className="text-sm text-soft">Your organization wants a code from an authenticator app beside the password. If you have set one up already, log out and log in with it.</p>
      <Refusal error={begin.error ?? confirm.error} />
      {!begin.data && <div><Button kind="primary" busy={begin.isPending} onClick={() => begin.mutate()}>Set it up</Button></div>}
      {begin.data && !confirm.data && (
        <form onSubmit={submit} className="flex flex-col gap-3">
          <p>Give your app this secret: <code className="break-all">{begin.data.secret}</code></p>
          <p className="text-sm"><a className="underline" href={begin.data.otpauth_url}>Open it in an app on this device</a></p>
          <Field label="Code that the app shows"><Input required inputMode="numeric" autoComplete="one-time-code" value={code} onChange={(e) => setCode(e.target.value)} /></Field>
          <div><Button kind="primary" type="submit" busy={confirm.isPending}>Confirm</Button></div>
        </form>
      )}
      {confirm.data && (
        <section className="flex flex-col gap-3">
          <p>Keep these recovery codes. Each replaces one code, once.</p>
          <ul className="font-mono text-sm">{confirm.data.recovery_codes?.map((c) => <li key={c}>{c}</li>)}</ul>
          <div><Button kind="primary" onClick={() => void refresh()}>Go on</Button></div>
        </section>
      )}
    </main>
  );
}
