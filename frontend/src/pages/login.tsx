import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { Navigate, useSearchParams } from "react-router";
import { api, keepSession, Problem, take } from "../api/client";
import { home, useSession } from "../session";
import { Refusal } from "../show";
import { Button, Field, Input } from "../ui";

// What the way back from an identity provider may say.
const problems: Record<string, string> = {
  "no-account": "There is no account with your verified address. Ask for an invitation.",
  "log-in-expired": "That log-in was not begun in this browser, or took too long. Try again.",
  "identity-provider-unavailable": "Your organization's log-in does not answer. Try again.",
};

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
  const methods = useQuery({ queryKey: ["log-in-methods"], queryFn: () => take(api.GET("/v1/log-in-methods")), retry: false });
  if (session.status === "in") {
    const next = search.get("next") ?? "/";
    // Only a path of our own: a link must not send people elsewhere after they have logged in.
    return <Navigate to={/^\/(?!\/)/.test(next) && next !== "/" ? next : home(session.me)} replace />;
  }
  const wantsCode = code !== "" || (logIn.error instanceof Problem && logIn.error.type.endsWith("second-factor-required"));
  const problem = search.get("problem");
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
        {methods.data?.oidc && (
          // A link and no request: the browser itself goes to the identity provider.
          <a className="text-center text-sm underline" href={`/v1/sessions/oidc?next=${encodeURIComponent(search.get("next") ?? "/")}`}>Log in with your organization</a>
        )}
        {problem !== null && <p role="alert" className="text-sm text-warn">{problems[problem] ?? "That log-in did not work. Try again."}</p>}
      </form>
    </main>
  );
}
