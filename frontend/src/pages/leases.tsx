import { Link, useSearchParams } from "react-router";
import { api, from, takePart, type Schemas } from "../api/client";
import { useCountdown } from "../countdown";
import { paths } from "../paths";
import { ShowList, useList } from "../show";
import { Badge, Card, Duration, Empty, Field, Instant, Money, Page, Select, Table } from "../ui";

type Lease = Schemas["Lease"];

const filters: Record<string, { name: string; states: Lease["state"][] }> = {
  all: { name: "All", states: [] },
  live: { name: "Booked and running", states: ["reserved", "provisioning", "active", "releasing"] },
  over: { name: "Over", states: ["closed", "cancelled"] },
};

export function Leases() {
  const [search, setSearch] = useSearchParams();
  const show = search.get("show") ?? "all";
  const state = filters[show]?.states ?? [];
  const leases = useList(["leases", show], (cursor) => takePart(api.GET("/v1/leases", { params: { query: { ...from(cursor), ...(state.length > 0 ? { state } : {}) } } })), 5_000);
  return (
    <Page title="Leases" action={
      <Field label="Show">
        <Select value={show} onChange={(e) => setSearch({ show: e.target.value }, { replace: true })}>
          {Object.entries(filters).map(([value, { name }]) => <option key={value} value={value}>{name}</option>)}
        </Select>
      </Field>
    }>
      <Card>
        <ShowList query={leases} what="leases">
          {(items) => items.length === 0
            ? <Empty title={show === "all" ? "You have no leases yet" : "No such leases"}><Link className="text-accent underline" to={paths.market}>Find capacity on the market</Link></Empty>
            : (
              <Table caption="Leases, newest first" rows={items} id={(l) => l.id} columns={[
                ["Lease", (l) => <Link className="font-semibold break-words text-accent underline" to={paths.lease(l.id)}>{l.name}</Link>],
                ["What", (l) => <>{l.instances} × {l.instance_type}<br /><span className="text-xs text-soft">{l.site}</span></>],
                ["Start", (l) => <Instant at={l.start} />],
                ["End", (l) => <Instant at={l.end} />],
                ["State", (l) => <LeaseState lease={l} />],
                ["Remaining", (l) => <Remaining lease={l} />],
                ["Held", (l) => <Money of={l.held} />],
                ["Charged", (l) => <Money of={l.charged} />],
              ]} />
            )}
        </ShowList>
      </Card>
    </Page>
  );
}

export function LeaseState({ lease: l }: { lease: Lease }) {
  const tone = l.outcome === "failed" ? "bad" : l.state === "active" ? "good" : l.state === "closed" || l.state === "cancelled" ? "calm" : "warn";
  return <Badge tone={tone}>{l.state}{l.outcome && l.state !== "cancelled" ? ` · ${l.outcome}` : ""}</Badge>;
}

export function Remaining({ lease: l }: { lease: Lease }) {
  const toStart = useCountdown(l.start), toEnd = useCountdown(l.wanted_end ?? l.end);
  if (l.state === "active") return <Duration seconds={toEnd} />;
  if (l.state === "reserved" || l.state === "provisioning") return toStart > 0 ? <>starts in <Duration seconds={toStart} /></> : <>starting</>;
  return <>ended</>;
}
