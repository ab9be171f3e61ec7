import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, from, once, take, takePart, type Schemas } from "../api/client";
import { hasFleet, useMe } from "../session";
import { Refusal, ShowList, useList } from "../show";
import { Alert, Badge, Button, Card, CopyText, Dialog, Empty, Field, Input, Instant, Page, Select, Table, TextArea } from "../ui";

export function Keys() {
  return <Page title="Keys" intro="Who may log in to your nodes, and which programs may act for you."><SSHKeys /><APIKeys /></Page>;
}

interface Going { id: string; name: string }

function Sure({ title, what, doing, error, busy, act, close }: { title: string; what: string; doing: string; error: Error | null; busy: boolean; act: () => void; close: () => void }) {
  return (
    <Dialog title={title} close={close}>
      <p className="text-sm">{what}</p>
      <Refusal error={error} />
      <div className="flex flex-wrap gap-3"><Button kind="danger" busy={busy} onClick={act}>{doing}</Button><Button onClick={close}>Keep it</Button></div>
    </Dialog>
  );
}

function SSHKeys() {
  const queries = useQueryClient();
  const keys = useList(["ssh-keys", "list"], (cursor) => takePart(api.GET("/v1/ssh-keys", { params: { query: from(cursor) } })));
  const [going, setGoing] = useState<Going | null>(null);
  const remove = useMutation({
    mutationFn: (id: string) => take(api.DELETE("/v1/ssh-keys/{ssh_key_id}", { params: { path: { ssh_key_id: id }, header: once() } })),
    onSuccess: () => { setGoing(null); return queries.invalidateQueries({ queryKey: ["ssh-keys"] }); },
  });
  return (
    <Card title="SSH keys">
      <ShowList query={keys} what="SSH keys">{(items) => items.length === 0 ? <Empty title="No SSH keys yet">Add one: leases are logged in to with it.</Empty> : (
        <Table caption="SSH keys" rows={items} id={(k) => k.id} columns={[
          ["Name", (k) => <span className="font-semibold">{k.name}</span>],
          ["Fingerprint", (k) => <code className="text-xs break-all">{k.fingerprint}</code>],
          ["Added", (k) => <Instant at={k.created_at} />],
          ["", (k) => <Button kind="danger" onClick={() => { remove.reset(); setGoing(k); }}>Remove…<span className="sr-only"> {k.name}</span></Button>],
        ]} />
      )}</ShowList>
      <div className="mt-4 border-t border-line pt-4"><AddSSHKey /></div>
      {going && <Sure title={`Remove ${going.name}`} what="New leases cannot use it any more. Running leases keep the keys that they were booked with." doing="Remove the key"
        error={remove.error} busy={remove.isPending} act={() => remove.mutate(going.id)} close={() => setGoing(null)} />}
    </Card>
  );
}

export function AddSSHKey({ added }: { added?: (id: string) => void }) {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const [key, setKey] = useState("");
  const add = useMutation({
    mutationFn: () => take(api.POST("/v1/ssh-keys", { params: { header: once() }, body: { name, public_key: key.trim() } })),
    onSuccess: async (made) => {
      setName("");
      setKey("");
      await queries.invalidateQueries({ queryKey: ["ssh-keys"] });
      added?.(made.id);
    },
  });
  return (
    <form className="flex flex-col gap-3" onSubmit={(e) => { e.preventDefault(); add.mutate(); }}>
      <Field label="Name of the key"><Input required maxLength={100} value={name} onChange={(e) => setName(e.target.value)} placeholder="laptop" /></Field>
      <Field label="Public key" hint="The line in ~/.ssh/id_ed25519.pub, never the private one"><TextArea required rows={2} spellCheck={false} value={key} onChange={(e) => setKey(e.target.value)} placeholder="ssh-ed25519 AAAA…" /></Field>
      <Refusal error={add.error} />
      <div><Button type="submit" busy={add.isPending}>Add SSH key</Button></div>
    </form>
  );
}

type Scope = Schemas["Scope"];

const scopes: Record<Scope, string> = {
  "market:read": "see the market and quotes", "leases:read": "see leases", "leases:write": "book, extend and end leases", "billing:read": "see balance and invoices",
  "billing:write": "pay in", "identity:read": "see keys and projects", "identity:write": "make and revoke keys", "organization:read": "see members", "organization:write": "change members and service accounts", "events:read": "see events and webhooks", "events:write": "change webhooks", "audit:read": "see the audit log", "admin:read": "see the fleet", "admin:write": "change the fleet",
};
const usual: Scope[] = ["market:read", "leases:read", "leases:write"];
const lives: [string, string][] = [["30", "30 days"], ["90", "90 days"], ["365", "a year"], ["", "for ever"]];

function APIKeys() {
  const queries = useQueryClient();
  const keys = useList(["api-keys"], (cursor) => takePart(api.GET("/v1/api-keys", { params: { query: from(cursor) } })));
  const [going, setGoing] = useState<Going | null>(null);
  const [made, setMade] = useState<string | null>(null);
  const revoke = useMutation({
    mutationFn: (id: string) => take(api.DELETE("/v1/api-keys/{api_key_id}", { params: { path: { api_key_id: id }, header: once() } })),
    onSuccess: () => { setGoing(null); return queries.invalidateQueries({ queryKey: ["api-keys"] }); },
  });
  return (
    <Card title="API keys">
      <ShowList query={keys} what="API keys">{(items) => items.length === 0 ? <Empty title="No API keys yet">Make one for a program: the API and the command line can do all that this portal can.</Empty> : (
        <Table caption="API keys" rows={items} id={(k) => k.id} columns={[
          ["Name", (k) => <span className="font-semibold">{k.name}</span>],
          ["May", (k) => <span className="text-xs">{k.scopes.join(", ")}</span>],
          ["Made", (k) => <Instant at={k.created_at} />],
          ["Expires", (k) => k.expires_at ? <Instant at={k.expires_at} /> : "never"],
          ["Last use", (k) => k.last_used_at ? <Instant at={k.last_used_at} /> : "never"],
          ["", (k) => k.revoked_at ? <Badge tone="bad">revoked</Badge> : <Button kind="danger" onClick={() => { revoke.reset(); setGoing(k); }}>Revoke…<span className="sr-only"> {k.name}</span></Button>],
        ]} />
      )}</ShowList>
      <div className="mt-4 border-t border-line pt-4"><MakeAPIKey made={setMade} /></div>
      {going && <Sure title={`Revoke ${going.name}`} what="Programs that use it are refused at once. This cannot be undone." doing="Revoke the key"
        error={revoke.error} busy={revoke.isPending} act={() => revoke.mutate(going.id)} close={() => setGoing(null)} />}
      {made && (
        <Dialog title="Your new API key" close={() => setMade(null)}>
          <Alert tone="warn" title="Copy it now: it is not shown again" />
          <CopyText text={made} />
          <div><Button kind="primary" onClick={() => setMade(null)}>I have copied it</Button></div>
        </Dialog>
      )}
    </Card>
  );
}

function MakeAPIKey({ made }: { made: (secret: string) => void }) {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const [may, setMay] = useState(usual);
  const [life, setLife] = useState("90");
  const admin = hasFleet(useMe());
  const offered = (Object.keys(scopes) as Scope[]).filter((s) => admin || !s.startsWith("admin:"));
  const make = useMutation({
    mutationFn: () => take(api.POST("/v1/api-keys", { params: { header: once() }, body: { name, scopes: may, ...(life ? { expires_at: new Date(Date.now() + Number(life) * 86_400_000).toISOString() } : {}) } })),
    onSuccess: (key) => {
      setName("");
      if (key.secret) made(key.secret);
      return queries.invalidateQueries({ queryKey: ["api-keys"] });
    },
  });
  return (
    <form className="flex flex-col gap-3" onSubmit={(e) => { e.preventDefault(); make.mutate(); }}>
      <div className="grid gap-3 sm:grid-cols-2">
        <Field label="Name of the API key"><Input required maxLength={100} value={name} onChange={(e) => setName(e.target.value)} placeholder="training pipeline" /></Field>
        <Field label="Valid for"><Select value={life} onChange={(e) => setLife(e.target.value)}>{lives.map(([value, title]) => <option key={value} value={value}>{title}</option>)}</Select></Field>
      </div>
      <fieldset className="text-sm">
        <legend className="mb-1 font-medium">It may</legend>
        <div className="grid gap-1 sm:grid-cols-2">
          {offered.map((scope) => (
            <label key={scope} className="flex min-h-8 items-center gap-2">
              <input type="checkbox" className="size-4 shrink-0" checked={may.includes(scope)} onChange={(e) => setMay(e.target.checked ? [...may, scope] : may.filter((s) => s !== scope))} />
              <span>{scopes[scope]} <code className="text-xs text-soft">{scope}</code></span>
            </label>
          ))}
        </div>
      </fieldset>
      <Refusal error={make.error} />
      <div><Button type="submit" busy={make.isPending} why={may.length > 0 ? undefined : "Choose what it may do first."}>Make API key</Button></div>
    </form>
  );
}
