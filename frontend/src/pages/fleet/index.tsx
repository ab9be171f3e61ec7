import { useQuery } from "@tanstack/react-query";
import { Navigate, useSearchParams } from "react-router";
import { api, from, take, takePart, type Schemas } from "../../api/client";
import { paths } from "../../paths";
import { hasFleet, useMe } from "../../session";
import { Show, ShowList, useList } from "../../show";
import { Badge, Button, Card, Empty, Field, Page, Select, Table } from "../../ui";
import { Fabrics } from "./fabric";
import { NodeDrawer } from "./node";

/** Fleet is the operator's, and a provider's as far as it owns the machines: the server refuses everybody else, whatever the address bar says. */
export function Fleet() {
  const me = useMe();
  if (!hasFleet(me)) return <Navigate to={paths.market} replace />;
  return <Machines provider={me.organization.kind === "provider"} />;
}

function Machines({ provider }: { provider: boolean }) {
  const [search, setSearch] = useSearchParams();
  const open = search.get("node");
  const show = (part: { node?: string; state?: string }) => setSearch((old) => {
    for (const [name, value] of Object.entries(part)) {
      if (value) old.set(name, value); else old.delete(name);
    }
    return old;
  }, { replace: true, preventScrollReset: true });
  return (
    <Page title="Fleet" intro={provider ? "Your machines, what they do now, and what is the matter with them." : "Every machine, what it does now, and how isolated it is."}>
      <Capacity provider={provider} />
      <Nodes state={search.get("state") ?? ""} filter={(state) => show({ state })} open={(node) => show({ node })} selected={open} />
      <Fabrics />
      {!provider && <Doctor />}
      {open && <NodeDrawer key={open} id={open} provider={provider} close={() => show({ node: "" })} />}
    </Page>
  );
}

function Capacity({ provider }: { provider: boolean }) {
  const capacity = useQuery({ queryKey: ["admin", "capacity"], queryFn: () => take(api.GET("/v1/admin/capacity")), refetchInterval: 10_000 });
  return (
    <Card title="Capacity in GPUs">
      <Show query={capacity} what="capacity">{({ items }) => items.length === 0 ? <Empty title="No capacity yet">{provider ? "The operator creates your site and gives you a token, with which its agents enrol." : "Create a site, then let its agents enrol."}</Empty> : (
        <Table caption="Capacity" rows={items} id={(c) => c.site + c.hardware} columns={[
          ["Site", (c) => c.site], ["Hardware", (c) => <code className="text-xs">{c.hardware}</code>],
          ["Delivered", (c) => c.delivered_gpus], ["Healthy", (c) => c.healthy_gpus], ["Reserved", (c) => c.reserved_gpus], ["Active", (c) => c.active_gpus],
        ]} />
      )}</Show>
    </Card>
  );
}

type State = Schemas["NodeState"];

const looks: Record<State, string> = {
  available: "bg-good-soft text-good", maintenance: "bg-warn-soft text-warn", quarantined: "bg-bad-soft text-bad", retired: "bg-line text-ink",
  discovered: "bg-calm-soft text-ink", verifying: "bg-calm-soft text-ink",
};
const states = Object.keys(looks) as State[];

interface NodesProps { state: string; filter: (state: string) => void; open: (id: string) => void; selected: string | null }

function Nodes({ state, filter, open, selected }: NodesProps) {
  const known = states.find((s) => s === state);
  const nodes = useList(["admin", "nodes", state], (cursor) => takePart(api.GET("/v1/admin/nodes", { params: { query: { limit: 200, ...(known ? { state: known } : {}), ...from(cursor) } } })), 5_000);
  return (
    <Card title="Nodes" action={
      <Field label="State">
        <Select value={known ?? ""} onChange={(e) => filter(e.target.value)}><option value="">all</option>{states.map((s) => <option key={s}>{s}</option>)}</Select>
      </Field>
    }>
      <ShowList query={nodes} what="nodes">{(items) => items.length === 0
        ? <Empty title={known ? `No node is ${known}` : "No nodes yet"}>{known ? "Choose another state." : "Agents that enrol appear here."}</Empty>
        : <NodeMap nodes={items} open={open} selected={selected} />}</ShowList>
    </Card>
  );
}

/** NodeMap groups nodes by what hangs together: the pod where there is one, else the hardware. */
function NodeMap({ nodes, open, selected }: { nodes: Schemas["Node"][]; open: (id: string) => void; selected: string | null }) {
  const groups = new Map<string, Schemas["Node"][]>();
  for (const n of nodes) {
    const name = `${n.site} · ${n.pod || n.hardware || "not recognised"}`;
    groups.set(name, [...(groups.get(name) ?? []), n]);
  }
  return (
    <div className="flex flex-col gap-4">
      {[...groups].map(([name, members]) => (
        <section key={name} aria-label={name}>
          <h3 className="mb-1 text-sm text-soft">{name}</h3>
          <div className="grid grid-cols-[repeat(auto-fill,minmax(8.5rem,1fr))] gap-2">{members.map((n) => <NodeTile key={n.id} node={n} open={open} selected={n.id === selected} />)}</div>
        </section>
      ))}
    </div>
  );
}

function NodeTile({ node: n, open, selected }: { node: Schemas["Node"]; open: (id: string) => void; selected: boolean }) {
  const leased = n.total_slots > 0 ? Math.round((100 * n.leased_slots) / n.total_slots) : 0;
  return (
    <button type="button" onClick={() => open(n.id)} className={`rounded-md border px-3 py-2 text-left text-xs ${looks[n.state]} ${selected ? "border-accent" : "border-transparent"}`}>
      <span className="block truncate text-sm font-semibold">{n.name}</span>
      <span className="block">{n.state}{n.conditions.length > 0 ? ` · ${n.conditions.length} condition${n.conditions.length > 1 ? "s" : ""}` : ""}</span>
      <span className="block">{n.total_slots > 0 ? `${leased} % leased` : "no slots"}</span>
      <span aria-hidden className="mt-1 block h-1 overflow-hidden rounded-full bg-panel"><span className="block h-full bg-current" style={{ width: `${leased}%` }} /></span>
    </button>
  );
}

function Doctor() {
  const doctor = useQuery({ queryKey: ["admin", "doctor"], queryFn: () => take(api.GET("/v1/admin/doctor")), enabled: false });
  return (
    <Card title="Doctor" action={<Button busy={doctor.isFetching} onClick={() => void doctor.refetch()}>Check every invariant</Button>}>
      {doctor.data || doctor.error ? (
        <Show query={doctor} what="the findings">{({ healthy, checks }) => (
          <>
            <p role="status" className="mb-2 text-sm">{healthy ? "Every invariant holds." : "An invariant is broken: see the findings below."}</p>
            <ul className="flex flex-col gap-1 text-sm">
              {checks.map((c) => <li key={c.invariant}><Badge tone={c.ok ? "good" : "bad"}>{c.ok ? "holds" : "broken"}</Badge> {c.invariant}. {c.title}{c.findings.map((f) => <p key={f} className="pl-6 break-words text-bad">{f}</p>)}</li>)}
            </ul>
          </>
        )}</Show>
      ) : <p className="text-sm text-soft">Looks at the live database and workflows; takes some seconds.</p>}
    </Card>
  );
}
