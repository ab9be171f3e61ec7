import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, once, take, takeVersioned, type Schemas } from "../../api/client";
import { bytes } from "../../format";
import { Refusal, Show } from "../../show";
import { Alert, Badge, Button, Dialog, Empty, Facts, Field, Input, Instant, Progress, Select, Table, type Tone } from "../../ui";

type Detail = Schemas["NodeDetail"];

/** NodeDrawer is all that is known about a machine, and what the operator, or the provider whose it is, may do with it. */
export function NodeDrawer({ id, provider, close }: { id: string; provider: boolean; close: () => void }) {
  const node = useQuery({ queryKey: ["admin", "node", id], queryFn: () => takeVersioned(api.GET("/v1/admin/nodes/{node_id}", { params: { path: { node_id: id } } })), refetchInterval: 5_000 });
  return (
    <Dialog title={node.data?.data.node.name ?? "Node"} side close={close}>
      <Show query={node} what="the node">{({ data: d, etag }) => (
        <>
          <Summary detail={d} />
          <Move key={d.node.state} node={d.node} etag={etag} provider={provider} />
          <Section title={`GPUs (${d.gpus.length})`}><GPUs gpus={d.gpus} /></Section>
          <Section title={`HCA ports (${d.ports.length})`}><Ports ports={d.ports} /></Section>
          <Section title={`Allocations (${d.allocations.length})`}><Allocations allocations={d.allocations} /></Section>
          <Section title={`Operations (${d.operations.length})`}><Operations operations={d.operations} /></Section>
          {d.changes.length > 0 && <Section title={`Changes of its hardware (${d.changes.length})`}><Changes changes={d.changes} /></Section>}
        </>
      )}</Show>
    </Dialog>
  );
}

function Section({ title, children }: { title: string; children: React.ReactNode }) {
  return <section aria-label={title}><h3 className="mb-1 text-sm font-semibold">{title}</h3>{children}</section>;
}

function Summary({ detail: { node: n } }: { detail: Detail }) {
  return (
    <>
      <Facts rows={[
        ["State", <>{n.state}{n.state_reason && `: ${n.state_reason}`}{n.state_exit && <> <Badge>exit: {n.state_exit}</Badge></>}</>],
        ["Hardware", n.hardware || "not recognised"], ["Mode", n.mode.replace("_", " ")], ["Place", [n.site, n.pod, n.leaf].filter(Boolean).join(" · ")],
        ["Leased", `${n.leased_slots} of ${n.total_slots} slots`], ["Last seen", n.last_seen_at ? <Instant key="l" at={n.last_seen_at} /> : "never"],
      ]} />
      {n.conditions.map((c) => (
        <Alert key={c.name + c.device} tone={c.class === "informs" ? "calm" : c.class === "degrades" ? "warn" : "bad"} title={`${c.name} on ${c.device}: ${c.class.replace("_", " ")}`}>
          <p>{c.evidence}</p><p>Since <Instant at={c.onset} />. Ends when: {c.exit}</p>
        </Alert>
      ))}
    </>
  );
}

type State = Schemas["NodeState"];

// Where a node may go from where it is: the rule is the backend's (inventory/state.go), which also judges the exit of a quarantine.
const next: Record<State, State[]> = {
  discovered: ["verifying", "quarantined", "retired"], verifying: ["available", "maintenance", "quarantined", "retired"], available: ["maintenance", "quarantined"],
  maintenance: ["available", "verifying", "quarantined", "retired"], quarantined: ["verifying", "maintenance", "retired"], retired: [],
};
const nextForProvider: Partial<Record<State, State[]>> = { verifying: ["maintenance"], available: ["maintenance"], maintenance: ["verifying"] };
const meaning: Record<State, string> = {
  available: "It goes on the market.", maintenance: "It leaves the market; running leases stay.", verifying: "What is quarantined on it is cleaned again, and it is tested, before it can be sold.",
  quarantined: "It leaves the market until it has passed its exit.", retired: "It never comes back. Slots in quarantine go with it unwiped, which needs a reason.", discovered: "",
};

function Move({ node: n, etag, provider }: { node: Schemas["Node"]; etag: string; provider: boolean }) {
  const queries = useQueryClient();
  const ways = provider ? (nextForProvider[n.state] ?? []) : next[n.state];
  const [state, setState] = useState<State | "">("");
  const [reason, setReason] = useState("");
  const [exit, setExit] = useState<"retest" | "repair" | "retire">("retest");
  const move = useMutation({
    mutationFn: (to: State) => take(api.PUT("/v1/admin/nodes/{node_id}/state", {
      params: { path: { node_id: n.id }, header: { ...once(), "If-Match": etag } },
      body: { state: to, ...(reason ? { reason } : {}), ...(to === "quarantined" ? { exit } : {}) },
    })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["admin"] }),
  });
  if (ways.length === 0) return <p className="text-sm text-soft">{n.state === "retired" ? "A retired node stays retired." : `Only the operator moves a node that is ${n.state}.`}</p>;
  return (
    <form className="flex flex-col gap-3 rounded-md border border-line p-3" onSubmit={(e) => { e.preventDefault(); if (state) move.mutate(state); }}>
      <div className="grid gap-3 sm:grid-cols-2">
        <Field label="Change its state to" hint={state ? meaning[state] : undefined}>
          <Select value={state} onChange={(e) => setState(ways.find((w) => w === e.target.value) ?? "")}><option value="">choose…</option>{ways.map((w) => <option key={w}>{w}</option>)}</Select>
        </Field>
        <Field label="Reason"><Input maxLength={1000} required={state === "quarantined"} value={reason} onChange={(e) => setReason(e.target.value)} /></Field>
        {state === "quarantined" && (
          <Field label="Way out"><Select value={exit} onChange={(e) => setExit(e.target.value as typeof exit)}><option value="retest">test it again</option><option value="repair">repair it</option><option value="retire">retire it</option></Select></Field>
        )}
      </div>
      <Refusal error={move.error} />
      <div><Button type="submit" kind={state === "retired" || state === "quarantined" ? "danger" : "plain"} busy={move.isPending} why={state ? undefined : "Choose a state first."}>Change the state</Button></div>
    </form>
  );
}

function GPUs({ gpus }: { gpus: Detail["gpus"] }) {
  if (gpus.length === 0) return <Empty title="No GPUs were reported" />;
  return (
    <Table caption="GPUs" rows={gpus} id={(g) => g.uuid} columns={[
      ["Bay", (g) => g.bay], ["Model", (g) => g.model], ["Memory", (g) => bytes(g.memory_bytes)],
      ["Address", (g) => <><code className="text-xs">{g.pci_address}</code><br /><code className="text-xs break-all text-soft">{g.uuid}</code></>],
    ]} />
  );
}

function Ports({ ports }: { ports: Detail["ports"] }) {
  if (ports.length === 0) return <p className="text-sm text-soft">None: this node is on no InfiniBand fabric.</p>;
  return (
    <Table caption="HCA ports" rows={ports} id={(p) => p.guid} columns={[
      ["Device", (p) => p.device], ["Rail", (p) => p.rail], ["Rate", (p) => `${p.rate_gbps} Gb/s`], ["GUID", (p) => <code className="text-xs break-all">{p.guid}</code>],
      ["Switch", (p) => p.switch ? `${p.switch}, port ${p.switch_port ?? "?"}` : "–"],
    ]} />
  );
}

function Allocations({ allocations }: { allocations: Detail["allocations"] }) {
  if (allocations.length === 0) return <p className="text-sm text-soft">Nothing holds this node.</p>;
  return (
    <Table caption="Allocations" rows={allocations} id={(a) => a.id} columns={[
      ["Purpose", (a) => <>{a.purpose}{a.lease_id && <><br /><code className="text-xs break-all text-soft">{a.lease_id}</code></>}</>], ["Slots", (a) => `[${a.slots.from}, ${a.slots.to})`],
      ["From", (a) => <Instant at={a.occupied.start} />], ["To", (a) => <Instant at={a.occupied.end} />], ["State", (a) => <>{a.state.replace("_", " ")} <span className="text-soft">{a.reason}</span></>],
    ]} />
  );
}

const tones: Record<Schemas["Operation"]["state"], Tone> = { queued: "calm", running: "warn", succeeded: "good", failed: "bad", fenced: "bad", expired: "bad" };

function Operations({ operations }: { operations: Detail["operations"] }) {
  if (operations.length === 0) return <p className="text-sm text-soft">Its agent was asked nothing yet.</p>;
  return (
    <Table caption="Operations, newest first" rows={operations} id={(o) => o.id} columns={[
      ["Kind", (o) => o.kind.replaceAll("_", " ")],
      ["State", (o) => <><Badge tone={tones[o.state]}>{o.state}</Badge>{o.fault && <p className="text-xs break-words">{o.fault}</p>}</>],
      ["Progress", (o) => o.state === "running" ? <div className="min-w-24"><span className="text-xs">{o.phase}</span><Progress percent={o.percent} label={`Progress of ${o.kind}`} /></div> : `${o.percent} %`],
      ["When", (o) => <Instant at={o.created_at} />],
    ]} />
  );
}

function Changes({ changes }: { changes: Detail["changes"] }) {
  return (
    <Table caption="Changes of its hardware" rows={changes} id={(c) => c.what + c.observed_at} columns={[
      ["What", (c) => c.what], ["Before", (c) => c.before || "–"], ["After", (c) => c.after || "–"], ["State", (c) => c.state], ["Seen", (c) => <Instant at={c.observed_at} />],
    ]} />
  );
}
