import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { Navigate, useSearchParams } from "react-router";
import { api, keepSession, Problem, take } from "../api/client";
import { home, useSession } from "../session";
import { Refusal } from "../show";
import { Button, Field, Input } from "../ui";

export function Login() {
  const session = useSession();
  const [search] = useSearchParams();
  const [email, setEmail] = useState("");
  const [password, setPassword] = useState("");
  const [code, setCode] = useState("");
  const logIn = useMutation({
    mutationFn: () => take(api.POST("/v1/sessions", { body: code === "" ? { email, password } : { email, password, code } })),
    onSuccess: keepSession,
  });
  if (session.status === "in") {
    const next = search.get("next") ?? "/";
    // Only a path of our own: a link must not send people elsewhere after they have logged in.
    return <Navigate to={/^\/(?!\/)/.test(next) && next !== "/" ? next : home(session.me)} replace />;
  }
  const wantsCode = code !== "" || (logIn.error instanceof Problem && logIn.error.type.endsWith("second-factor-required"));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    logIn.mutate();
  };
  return (
    <main className="mx-auto flex min-h-screen max-w-sm flex-col justify-center gap-6 px-4">
      <title>Log in · Leasehold</title>
      <div>
        <h1 className="text-3xl font-bold tracking-tight">Leasehold</h1>
        <p className="mt-1 text-sm text-soft">GPU capacity by the hour, fenced off and wiped, with proof.</p>
      </div>
      <form onSubmit={submit} className="flex flex-col gap-4 rounded-lg border border-line bg-panel p-5">
        <Field label="E-mail"><Input type="email" autoComplete="username" required value={email} onChange={(e) => setEmail(e.target.value)} /></Field>
        <Field label="Password"><Input type="password" autoComplete="current-password" required value={password} onChange={(e) => setPassword(e.target.value)} /></Field>
        {wantsCode && (
          <Field label="Code" hint="From your authenticator app, or a recovery code">
            <Input required autoFocus autoComplete="one-time-code" value={code} onChange={(e) => setCode(e.target.value)} />
          </Field>
        )}
        <Refusal error={logIn.error} />
        <Button kind="primary" type="submit" busy={logIn.isPending}>Log in</Button>
      </form>
    </main>
  );
}
