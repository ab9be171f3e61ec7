import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, take, type Schemas } from "../api/client";
import { Show } from "../show";
import { Badge, Button, Card, Empty, Facts, Instant, Page, Table } from "../ui";

export function Fleet() {
  const nodes = useQuery({ queryKey: ["admin", "nodes"], queryFn: () => take(api.GET("/v1/admin/nodes", { params: { query: { limit: 200 } } })), refetchInterval: 5_000 });
  const capacity = useQuery({ queryKey: ["admin", "capacity"], queryFn: () => take(api.GET("/v1/admin/capacity")), refetchInterval: 10_000 });
  const fabrics = useQuery({ queryKey: ["admin", "fabrics"], queryFn: () => take(api.GET("/v1/admin/fabrics")), refetchInterval: 10_000 });
  const [selected, setSelected] = useState<string | null>(null);
  return (
    <Page title="Fleet" intro="Every machine, what it does now, and how isolated it is.">
      <Card title="Capacity in GPUs">
        <Show query={capacity} what="capacity">{({ items }) => items.length === 0 ? <Empty title="No capacity yet">Create a site, then let its agents enrol.</Empty> : (
          <Table caption="Capacity" head={["Site", "Hardware", "Delivered", "Healthy", "Reserved", "Active"]}>
            {items.map((c) => <tr key={c.site + c.hardware}><td>{c.site}</td><td><code className="text-xs">{c.hardware}</code></td><td>{c.delivered_gpus}</td><td>{c.healthy_gpus}</td><td>{c.reserved_gpus}</td><td>{c.active_gpus}</td></tr>)}
          </Table>
        )}</Show>
      </Card>
      <Card title="Nodes">
        <Show query={nodes} what="nodes">{({ items }) => <NodeMap nodes={items} selected={selected} select={setSelected} />}</Show>
        {selected && <NodeDetail id={selected} />}
      </Card>
      <Card title="Fabrics">
        <Show query={fabrics} what="fabrics">{({ items }) => items.length === 0 ? <Empty title="No fabrics yet" /> : <>{items.map((f) => <FabricRow key={f.id} fabric={f} />)}</>}</Show>
      </Card>
      <Doctor />
    </Page>
  );
}

const looks: Record<Schemas["NodeState"], string> = {
  available: "bg-good-soft text-good", maintenance: "bg-warn-soft text-warn", quarantined: "bg-bad-soft text-bad", retired: "bg-line text-soft",
  discovered: "bg-calm-soft text-ink", verifying: "bg-calm-soft text-ink",
};

/** NodeMap groups nodes by what hangs together: the leaf or pod where there is one, else the hardware. */
function NodeMap({ nodes, selected, select }: { nodes: Schemas["Node"][]; selected: string | null; select: (id: string) => void }) {
  if (nodes.length === 0) return <Empty title="No nodes yet">Agents that enrol appear here.</Empty>;
  const groups = Map.groupBy(nodes, (n) => `${n.site} · ${n.pod || n.hardware || "not recognised"}`);
  return (
    <div className="flex flex-col gap-4">
      {[...groups].map(([name, members]) => (
        <section key={name} aria-label={name}>
          <h3 className="mb-1 text-sm text-soft">{name}</h3>
          <div className="grid grid-cols-[repeat(auto-fill,minmax(9.5rem,1fr))] gap-2">
            {members.map((n) => (
              <button key={n.id} type="button" aria-pressed={n.id === selected} onClick={() => select(n.id)}
                className={`rounded-md border px-3 py-2 text-left text-xs ${looks[n.state]} ${n.id === selected ? "border-accent" : "border-transparent"}`}>
                <span className="block text-sm font-semibold">{n.name}</span>
                <span className="block">{n.state}{n.conditions.length > 0 ? ` · ${n.conditions.length} conditions` : ""}</span>
                <span className="block">{n.total_slots > 0 ? `${Math.round((100 * n.leased_slots) / n.total_slots)} % leased` : "no slots"}</span>
              </button>
            ))}
          </div>
        </section>
      ))}
    </div>
  );
}

function NodeDetail({ id }: { id: string }) {
  const node = useQuery({ queryKey: ["admin", "node", id], queryFn: () => take(api.GET("/v1/admin/nodes/{node_id}", { params: { path: { node_id: id } } })), refetchInterval: 5_000 });
  return (
    <div className="mt-4 border-t border-line pt-4">
      <Show query={node} what="the node">{(d) => (
        <div className="flex flex-col gap-4">
          <h3 className="font-semibold">{d.node.name}</h3>
          <Facts rows={[
            ["State", `${d.node.state} ${d.node.state_reason}`], ["Hardware", d.node.hardware || "not recognised"], ["Mode", d.node.mode.replace("_", " ")],
            ["Leaf", d.node.leaf ?? "–"], ["Last seen", d.node.last_seen_at ? <Instant key="l" at={d.node.last_seen_at} /> : "never"],
            ["GPUs", d.gpus.length > 0 ? `${d.gpus.length} × ${d.gpus[0]?.model ?? ""}` : "none"], ["HCA ports", String(d.ports.length)],
          ]} />
          {d.node.conditions.map((c) => <p key={c.name + c.device} className="text-sm"><Badge tone={c.class === "informs" ? "calm" : "bad"}>{c.name}</Badge> {c.evidence}; exit: {c.exit}</p>)}
          {d.allocations.length > 0 && (
            <Table caption="Allocations" head={["Purpose", "Slots", "From", "To", "State"]}>
              {d.allocations.map((a) => <tr key={a.id}><td>{a.purpose}</td><td>[{a.slots.from}, {a.slots.to})</td><td><Instant at={a.occupied.start} /></td><td><Instant at={a.occupied.end} /></td><td>{a.state} {a.reason}</td></tr>)}
            </Table>
          )}
          {d.operations.length > 0 && (
            <Table caption="Latest operations" head={["Kind", "State", "Progress", "When"]}>
              {d.operations.slice(0, 10).map((o) => <tr key={o.id}><td>{o.kind}</td><td>{o.state} {o.fault}</td><td>{o.percent} %</td><td><Instant at={o.created_at} /></td></tr>)}
            </Table>
          )}
        </div>
      )}</Show>
    </div>
  );
}

function FabricRow({ fabric: f }: { fabric: Schemas["Fabric"] }) {
  return (
    <div className="flex flex-col gap-2">
      <p className="text-sm"><strong>{f.name}</strong> at {f.site}: {f.controller_version || f.driver}, {f.partitions} partitions, epoch {f.epoch}</p>
      <ul className="flex flex-wrap gap-2" aria-label={`Posture of ${f.name}`}>
        {f.posture.map((c) => <li key={c.item} title={c.detail}><Badge tone={c.verdict === "true" ? "good" : c.verdict === "false" ? "bad" : "warn"}>{c.item.replaceAll("_", " ")}: {c.verdict}</Badge></li>)}
      </ul>
    </div>
  );
}

function Doctor() {
  const doctor = useQuery({ queryKey: ["admin", "doctor"], queryFn: () => take(api.GET("/v1/admin/doctor")), enabled: false });
  return (
    <Card title="Doctor" action={<Button busy={doctor.isFetching} onClick={() => void doctor.refetch()}>Check every invariant</Button>}>
      {doctor.data ? (
        <ul className="flex flex-col gap-1 text-sm">
          {doctor.data.checks.map((c) => <li key={c.invariant}><Badge tone={c.ok ? "good" : "bad"}>{c.ok ? "holds" : "broken"}</Badge> {c.invariant}. {c.title}{c.findings.map((f) => <p key={f} className="pl-6 text-bad">{f}</p>)}</li>)}
        </ul>
      ) : <p className="text-sm text-soft">Looks at the live database and workflows; takes some seconds.</p>}
    </Card>
  );
}
