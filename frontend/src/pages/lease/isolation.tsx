import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../../api/client";
import { Show } from "../../show";
import { Badge, Card, Empty, Facts, Instant, Save, Table } from "../../ui";

/** Isolation is the lease's partition: its key, its ports, and what both witnesses said. */
export function Isolation({ lease: l }: { lease: Schemas["Lease"] }) {
  const isolation = useQuery({
    queryKey: ["lease", l.id, "isolation", l.last_event], placeholderData: keepPreviousData,
    queryFn: () => take(api.GET("/v1/leases/{lease_id}/isolation", { params: { path: { lease_id: l.id } } })),
  });
  return <Card title="Isolation"><Show query={isolation} what="isolation">{(i) => <Partition isolation={i} />}</Show></Card>;
}

const occasions: Record<Schemas["Attestation"]["occasion"], string> = { before_active: "before you got access", after_release: "after the end", on_demand: "on demand" };

function Partition({ isolation: i }: { isolation: Schemas["LeaseIsolation"] }) {
  if (!i.applies) return <p className="text-sm text-soft">This type comes without InfiniBand: there is no partition to isolate.</p>;
  const joined = i.ports.filter((p) => p.joined).length;
  return (
    <div className="flex flex-col gap-3">
      <Facts rows={[["Partition key", i.pkey ? <code key="k">{i.pkey}</code> : "none at present"], ["State", i.state || "no partition"], ["Ports", i.ports.length > 0 ? `${joined} of ${i.ports.length} are members, verified at both ends` : "none are members"]]} />
      {i.ports.length > 0 && (
        <details className="text-sm">
          <summary className="cursor-pointer text-soft">The ports</summary>
          <Table caption="Ports" rows={i.ports} id={(p) => p.guid} columns={[
            ["Node", (p) => p.node], ["Port", (p) => <code className="text-xs">{p.guid}</code>], ["Member", (p) => <Badge tone={p.joined ? "good" : "calm"}>{p.joined ? "yes" : "no"}</Badge>],
          ]} />
        </details>
      )}
      {i.attestations.length === 0 ? <Empty title="No attestation yet">The first one is made before you get access.</Empty> : (
        <Table caption="Attestations" rows={i.attestations} id={(a) => a.id} columns={[
          ["Made", (a) => occasions[a.occasion]],
          ["Verdict", (a) => <Badge tone={a.verdict === "isolated" ? "good" : a.verdict === "unknown" ? "warn" : "bad"}>{a.verdict.replace("_", " ")}</Badge>],
          ["When", (a) => <Instant at={a.created_at} />],
          ["", (a) => <Save name={`${a.id}.dsse.json`} content={a.envelope} />],
        ]} />
      )}
      <p className="text-xs break-words text-soft">Verify a download with <code>leasehold attest verify FILE</code>, or any DSSE tool and the keys at <a className="underline" href="/.well-known/attestation-keys.json">/.well-known/attestation-keys.json</a>.</p>
    </div>
  );
}
