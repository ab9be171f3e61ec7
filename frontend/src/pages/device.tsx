import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { useSearchParams } from "react-router";
import { api, once, take } from "../api/client";
import { Refusal } from "../show";
import { Button, Field, Input } from "../ui";

/** Device is where somebody lets a program on a machine without a browser act for them. */
export function Device() {
  const [search, setSearch] = useSearchParams();
  const code = search.get("code") ?? "";
  const [typed, setTyped] = useState(code);
  const [decided, setDecided] = useState<boolean | null>(null);
  const asks = useQuery({
    queryKey: ["device", code], enabled: code !== "" && decided === null, retry: false,
    queryFn: () => take(api.GET("/v1/device-authorizations/{user_code}", { params: { path: { user_code: code } } })),
  });
  const decide = useMutation({
    mutationFn: (approve: boolean) => take(api.POST("/v1/device-authorizations/{user_code}/decision", {
      params: { path: { user_code: code }, header: once() }, body: { approve },
    })),
    onSuccess: (_, approve) => setDecided(approve),
  });
  const look = (event: FormEvent) => { event.preventDefault(); setSearch({ code: typed }); };
  return (
    <main id="main" tabIndex={-1} className="mx-auto flex max-w-md flex-col gap-4 px-4 py-8">
      <title>Let a program in · Leasehold</title>
      <h1 className="text-2xl font-bold">Let a program in</h1>
      {decided !== null && <p role="status">{decided ? "Done. Go back to the program." : "Refused. The program gets nothing."}</p>}
      {decided === null && (
        <>
          <form onSubmit={look} className="flex flex-col gap-3">
            <Field label="Code that the program shows"><Input required value={typed} onChange={(e) => setTyped(e.target.value)} autoComplete="off" spellCheck={false} /></Field>
            <div><Button type="submit">Look</Button></div>
          </form>
          <Refusal error={asks.error ?? decide.error} />
          {asks.data && (
            <section className="flex flex-col gap-3 rounded-lg border border-line bg-panel p-5">
              <p><b>{asks.data.client}</b>, from {asks.data.source}, wants to act for you.</p>
              <p className="text-sm text-soft">Approve only what you have started yourself, just now. Somebody who sent you this code would get your access.</p>
              <div className="flex gap-2">
                <Button kind="primary" busy={decide.isPending} onClick={() => decide.mutate(true)}>Approve</Button>
                <Button onClick={() => decide.mutate(false)}>Refuse</Button>
              </div>
            </section>
          )}
        </>
      )}
    </main>
  );
}
