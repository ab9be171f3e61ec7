import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { api, take, type Schemas } from "../api/client";
import { money } from "../format";
import { paths } from "../routes";
import { Show } from "../show";
import { Badge, Card, Empty, Instant, Page, Table } from "../ui";

export function Leases() {
  const leases = useQuery({ queryKey: ["leases"], queryFn: () => take(api.GET("/v1/leases")), refetchInterval: 5_000 });
  return (
    <Page title="Leases">
      <Card>
        <Show query={leases} what="leases">
          {({ items }) => items.length === 0
            ? <Empty title="You have no leases yet"><Link className="text-accent underline" to={paths.market}>Find capacity on the market</Link></Empty>
            : (
              <Table caption="Leases, newest first" head={["Lease", "What", "Start", "End", "State", "Charged"]}>
                {items.map((l) => (
                  <tr key={l.id}>
                    <td><Link className="font-semibold text-accent underline" to={paths.lease(l.id)}>{l.name}</Link></td>
                    <td>{l.instances} × {l.instance_type}<br /><span className="text-xs text-soft">{l.site}</span></td>
                    <td><Instant at={l.start} /></td>
                    <td><Instant at={l.end} /></td>
                    <td><LeaseState lease={l} /></td>
                    <td className="whitespace-nowrap">{money(l.charged)}</td>
                  </tr>
                ))}
              </Table>
            )}
        </Show>
      </Card>
    </Page>
  );
}

export function LeaseState({ lease: l }: { lease: Schemas["Lease"] }) {
  const tone = l.outcome === "failed" ? "bad" : l.state === "active" ? "good" : l.state === "closed" || l.state === "cancelled" ? "calm" : "warn";
  return <Badge tone={tone}>{l.state}{l.outcome && l.state !== "cancelled" ? ` · ${l.outcome}` : ""}</Badge>;
}
