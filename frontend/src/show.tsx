import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Problem } from "./api/client";
import { money } from "./format";
import { Alert, Button, Loading } from "./ui";

/** Show renders a query's states: loading, error with a way on, or its data. */
export function Show<T>({ query, what, children }: { query: UseQueryResult<T>; what: string; children: (data: T) => ReactNode }) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error) {
    return (
      <Alert title={`Could not load ${what}`}>
        <p>{query.error.message}</p>
        <Button className="mt-2" onClick={() => void query.refetch()}>Try again</Button>
      </Alert>
    );
  }
  return <Loading what={what} />;
}

/** Refusal says what went wrong, with the numbers, and what to do next. */
export function Refusal({ error, next }: { error: Error | null; next?: ReactNode }) {
  if (!error) return null;
  const problem = error instanceof Problem ? error : null;
  const needed = problem?.facts["needed_minor"], available = problem?.facts["available_minor"];
  const currency = String(problem?.facts["currency"] ?? "USD");
  return (
    <Alert title={error.message}>
      {typeof needed === "number" && typeof available === "number" && (
        <p>Needed: {money({ amount: needed, currency })}. Available: {money({ amount: available, currency })}.</p>
      )}
      {problem?.fields.map((f) => <p key={f.pointer}>{f.pointer.slice(1)}: {f.detail}</p>)}
      {next}
    </Alert>
  );
}
