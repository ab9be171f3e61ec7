import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, once, take } from "../api/client";
import { Refusal, Show } from "../show";
import { Alert, Badge, Button, Card, Empty, Field, Input, Instant, Page, Table } from "../ui";

export function Keys() {
  return <Page title="Keys" intro="Who may log in to your nodes, and which programs may act for you."><SSHKeys /><APIKeys /></Page>;
}

function SSHKeys() {
  const queries = useQueryClient();
  const keys = useQuery({ queryKey: ["ssh-keys"], queryFn: () => take(api.GET("/v1/ssh-keys")) });
  const remove = useMutation({
    mutationFn: (id: string) => take(api.DELETE("/v1/ssh-keys/{ssh_key_id}", { params: { path: { ssh_key_id: id }, header: once() } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["ssh-keys"] }),
  });
  return (
    <Card title="SSH keys">
      <Refusal error={remove.error} />
      <Show query={keys} what="SSH keys">{({ items }) => items.length === 0 ? <Empty title="No SSH keys yet">Add one: leases are logged in to with it.</Empty> : (
        <Table caption="SSH keys" head={["Name", "Fingerprint", "Added", ""]}>
          {items.map((k) => <tr key={k.id}><td className="font-semibold">{k.name}</td><td><code className="text-xs">{k.fingerprint}</code></td><td><Instant at={k.created_at} /></td>
            <td><Button kind="danger" onClick={() => remove.mutate(k.id)} title="Running leases keep it" aria-label={`Remove ${k.name}`}>Remove</Button></td></tr>)}
        </Table>
      )}</Show>
      <div className="mt-4 border-t border-line pt-4"><AddSSHKey /></div>
    </Card>
  );
}

export function AddSSHKey() {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const [key, setKey] = useState("");
  const add = useMutation({
    mutationFn: () => take(api.POST("/v1/ssh-keys", { params: { header: once() }, body: { name, public_key: key.trim() } })),
    onSuccess: () => {
      setName("");
      setKey("");
      return queries.invalidateQueries({ queryKey: ["ssh-keys"] });
    },
  });
  return (
    <form className="flex flex-col gap-3" onSubmit={(e) => { e.preventDefault(); add.mutate(); }}>
      <Field label="Name of the key"><Input required maxLength={100} value={name} onChange={(e) => setName(e.target.value)} placeholder="laptop" /></Field>
      <Field label="Public key" hint="The line in ~/.ssh/id_ed25519.pub"><Input required value={key} onChange={(e) => setKey(e.target.value)} placeholder="ssh-ed25519 AAAA…" /></Field>
      <Refusal error={add.error} />
      <div><Button type="submit" busy={add.isPending}>Add SSH key</Button></div>
    </form>
  );
}

const scopes = ["market:read", "leases:read", "leases:write"] as const;

function APIKeys() {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const keys = useQuery({ queryKey: ["api-keys"], queryFn: () => take(api.GET("/v1/api-keys")) });
  const add = useMutation({
    mutationFn: () => take(api.POST("/v1/api-keys", { params: { header: once() }, body: { name, scopes: [...scopes] } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["api-keys"] }),
  });
  const revoke = useMutation({
    mutationFn: (id: string) => take(api.DELETE("/v1/api-keys/{api_key_id}", { params: { path: { api_key_id: id }, header: once() } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["api-keys"] }),
  });
  return (
    <Card title="API keys">
      {add.data?.secret && <Alert tone="warn" title="Copy the key now: it is not shown again"><code className="break-all">{add.data.secret}</code></Alert>}
      <Refusal error={add.error ?? revoke.error} />
      <Show query={keys} what="API keys">{({ items }) => items.length === 0 ? <Empty title="No API keys yet" /> : (
        <Table caption="API keys" head={["Name", "May", "Made", "Last use", ""]}>
          {items.map((k) => <tr key={k.id}><td className="font-semibold">{k.name}</td><td className="text-xs">{k.scopes.join(", ")}</td><td><Instant at={k.created_at} /></td>
            <td>{k.last_used_at ? <Instant at={k.last_used_at} /> : "never"}</td>
            <td>{k.revoked_at ? <Badge tone="bad">revoked</Badge> : <Button kind="danger" aria-label={`Revoke ${k.name}`} onClick={() => revoke.mutate(k.id)}>Revoke</Button>}</td></tr>)}
        </Table>
      )}</Show>
      <form className="mt-4 flex flex-wrap items-end gap-3 border-t border-line pt-4" onSubmit={(e) => { e.preventDefault(); add.mutate(); }}>
        <Field label="Name of the API key" hint={`May: ${scopes.join(", ")}`}><Input required maxLength={100} value={name} onChange={(e) => setName(e.target.value)} /></Field>
        <Button type="submit" busy={add.isPending}>Make API key</Button>
      </form>
    </Card>
  );
}
