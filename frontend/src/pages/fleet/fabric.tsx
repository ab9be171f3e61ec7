import { useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../../api/client";
import { Show } from "../../show";
import { Badge, Card, Empty, Facts, Instant, Table, type Tone } from "../../ui";

export function Fabrics() {
  const fabrics = useQuery({ queryKey: ["admin", "fabrics"], queryFn: () => take(api.GET("/v1/admin/fabrics")), refetchInterval: 10_000 });
  return (
    <Show query={fabrics} what="fabrics">{({ items }) => items.length === 0
      ? <Card title="Fabrics"><Empty title="No fabrics yet">They appear when a fabric's agent enrols.</Empty></Card>
      : <>{items.map((f) => <Fabric key={f.id} fabric={f} />)}</>}</Show>
  );
}

const verdicts: Record<Schemas["PostureCheck"]["verdict"], { tone: Tone; name: string }> = { true: { tone: "good", name: "yes" }, false: { tone: "bad", name: "no" }, unknown: { tone: "warn", name: "unknown" } };

function Fabric({ fabric: f }: { fabric: Schemas["Fabric"] }) {
  const detail = useQuery({ queryKey: ["admin", "fabric", f.id], refetchInterval: 10_000, queryFn: () => take(api.GET("/v1/admin/fabrics/{fabric_id}", { params: { path: { fabric_id: f.id } } })) });
  return (
    <Card title={`Fabric ${f.name}`}>
      <div className="flex flex-col gap-4">
        <Facts rows={[
          ["Site", f.site], ["Controller", f.controller_version || f.driver], ["Epoch", f.epoch], ["Last observed", f.observed_at ? <Instant key="o" at={f.observed_at} /> : "never"],
          ["Posture", (
            <ul key="p" className="flex flex-wrap gap-2" aria-label={`Posture of ${f.name}`}>
              {f.posture.map((c) => <li key={c.item} title={c.detail}><Badge tone={verdicts[c.verdict].tone}>{c.item.replaceAll("_", " ")}: {verdicts[c.verdict].name}</Badge></li>)}
            </ul>
          )],
        ]} />
        <Show query={detail} what="partitions">{(d) => (
          <>
            <p className="text-sm text-soft">{d.switches.length} switches, {d.links.length} links between them, {d.partitions.length} partitions, {d.drift.filter((x) => !x.ended_at).length} open drifts</p>
            {d.partitions.length > 0 && (
              <Table caption={`Partitions of ${f.name}`} rows={d.partitions} id={(p) => p.id} columns={[
                ["PKey", (p) => <code>{p.pkey}</code>], ["State", (p) => <Badge tone={p.state === "verified" ? "good" : "calm"}>{p.state}</Badge>],
                ["Ports", (p) => p.members], ["Lease", (p) => p.lease_id ? <code className="text-xs break-all">{p.lease_id}</code> : <span className="text-soft">a tenant's</span>],
              ]} />
            )}
            {d.drift.length > 0 && (
              <Table caption={`Drift of ${f.name}`} rows={d.drift} id={(x) => x.port_guid + x.onset} columns={[
                ["Port", (x) => <code className="text-xs">{x.port_guid}</code>], ["What", (x) => x.what], ["Since", (x) => <Instant at={x.onset} />],
                ["Until", (x) => x.ended_at ? <Instant at={x.ended_at} /> : <Badge tone="bad">open</Badge>],
              ]} />
            )}
          </>
        )}</Show>
      </div>
    </Card>
  );
}
