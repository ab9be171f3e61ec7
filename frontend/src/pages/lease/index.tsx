import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { lazy, Suspense, type ReactNode } from "react";
import { Link, useParams } from "react-router";
import { api, take, type Schemas } from "../../api/client";
import { paths } from "../../paths";
import { Show } from "../../show";
import { Alert, Badge, Card, Empty, Facts, Instant, Money, Page, Progress, Save, Skeleton, Table } from "../../ui";
import { LeaseState, Remaining } from "../leases";
import { Changes } from "./changes";
import { Events } from "./events";
import { Isolation } from "./isolation";
import { isOver, useLiveLease } from "./live";
import { Nodes } from "./nodes";

const Charts = lazy(async () => ({ default: (await import("./charts")).Charts }));
type Lease = Schemas["Lease"];

export function LeasePage() {
  const { id = "" } = useParams();
  const lease = useLiveLease(id);
  return (
    <Show query={lease} what="the lease">
      {(l) => (
        <Page title={l.name} intro={`${l.instances} × ${l.instance_type} at ${l.site}`} action={<LeaseState lease={l} />}>
          {l.reason && <Alert tone={l.outcome === "failed" ? "bad" : "warn"} title={l.reason} />}
          {l.wanted_end && !isOver(l) && l.state !== "releasing" && <Alert tone="calm" title="This lease was asked to end early; the nodes are being taken back." />}
          <Timeline lease={l} />
          <div className="grid grid-cols-[minmax(0,1fr)] gap-4 lg:grid-cols-2"><Contract lease={l} /><Cost lease={l} /></div>
          <Nodes lease={l} />
          {l.active_at && !isOver(l) && <Card title="Live"><Suspense fallback={<Skeleton what="charts" />}><Charts lease={id} /></Suspense></Card>}
          <Isolation lease={l} />
          {isOver(l) && l.state !== "cancelled" && <Wipes lease={id} />}
          <Events lease={l} />
        </Page>
      )}
    </Show>
  );
}

const steps: [Lease["state"], string][] = [["reserved", "Reserved"], ["provisioning", "Provisioning"], ["active", "Active"], ["releasing", "Releasing"], ["closed", "Closed"]];
const cancelled: typeof steps = [["reserved", "Reserved"], ["cancelled", "Cancelled"]];

function Timeline({ lease: l }: { lease: Lease }) {
  const shown = l.state === "cancelled" ? cancelled : steps;
  const at = shown.findIndex(([state]) => state === l.state);
  const since: Partial<Record<Lease["state"], string | undefined>> = { reserved: l.created_at, active: l.active_at, releasing: l.released_at, closed: l.closed_at, cancelled: l.closed_at };
  return (
    <Card>
      <ol className="grid gap-x-4 gap-y-2 text-sm sm:grid-flow-col sm:auto-cols-fr" aria-label="State">
        {shown.map(([state, name], i) => {
          const when = i <= at ? since[state] : undefined;
          return (
            <li key={state} aria-current={i === at ? "step" : undefined} className={`border-l-4 pl-3 sm:border-t-4 sm:border-l-0 sm:pt-2 sm:pl-0 ${i <= at ? "border-accent" : "border-line"}`}>
              <span className={i === at ? "font-bold" : i < at ? "" : "text-soft"}>{name}</span>
              <span className="block min-h-4 text-xs text-soft">{when && <Instant at={when} />}</span>
            </li>
          );
        })}
      </ol>
      <div aria-live="polite">
        {l.progress.step && (
          <div className="mt-3">
            <p className="mb-1 text-sm">{l.progress.step}: {l.progress.done} of {l.progress.total} nodes</p>
            <Progress percent={l.progress.percent} label={`Progress of ${l.progress.step}`} />
          </div>
        )}
      </div>
    </Card>
  );
}

function Contract({ lease: l }: { lease: Lease }) {
  const rows: [string, ReactNode][] = [["Start", <Instant key="s" at={l.start} />], ["End", <Instant key="e" at={l.end} />]];
  if (l.wanted_end) rows.push(["Ended early", <Instant key="w" at={l.wanted_end} />]);
  rows.push(["Remaining", <Remaining key="r" lease={l} />]);
  if (l.fabric) rows.push(["Fabric", l.fabric]);
  for (const [name, value] of Object.entries(l.tags)) rows.push([`Tag ${name}`, value]);
  rows.push(["Id", <code key="i" className="text-xs">{l.id}</code>]);
  return <Card title="Contract"><Facts rows={rows} /><Changes lease={l} /></Card>;
}

function Cost({ lease: l }: { lease: Lease }) {
  const usage = useQuery({
    queryKey: ["lease", l.id, "usage", l.last_event], placeholderData: keepPreviousData, refetchInterval: isOver(l) ? false : 5_000,
    queryFn: () => take(api.GET("/v1/leases/{lease_id}/usage", { params: { path: { lease_id: l.id } } })),
  });
  return (
    <Card title="Cost" action={l.invoice_id && <Link className="text-sm text-accent underline" to={`${paths.billing}?invoice=${l.invoice_id}`}>Invoice</Link>}>
      <Show query={usage} what="usage">{(u) => (
        <div className="flex flex-col gap-3">
          <Facts rows={[["Held", <Money key="h" of={l.held} />], ["Charged so far", <Money key="c" of={u.charged} strong />], ...(isOver(l) ? [] : [["Forecast to the end", <Money key="f" of={u.forecast} />] as const])]} />
          {u.lines.length > 0
            ? <Table caption="Charge lines" rows={u.lines} id={(line) => line.id} columns={[["Line", (line) => line.description], ["Amount", (line) => <Money of={line.amount} />], ["Tax", (line) => <Money of={line.tax} />]]} />
            : <p className="text-sm text-soft">{isOver(l) ? "Nothing was charged." : "Lines appear as delivered time is rated."}</p>}
        </div>
      )}</Show>
    </Card>
  );
}

function Wipes({ lease }: { lease: string }) {
  const wipes = useQuery({ queryKey: ["lease", lease, "wipes"], queryFn: () => take(api.GET("/v1/leases/{lease_id}/wipe-certificates", { params: { path: { lease_id: lease } } })) });
  return (
    <Card title="Wipe certificates">
      <Show query={wipes} what="certificates">{({ items }) => items.length === 0 ? <Empty title="Nothing had to be wiped" /> : (
        <Table caption="Wipe certificates" rows={items} id={(w) => w.id} columns={[
          ["Node", (w) => w.node],
          ["Result", (w) => <Badge tone={w.result === "wiped" ? "good" : "bad"}>{w.result}</Badge>],
          ["When", (w) => <Instant at={w.created_at} />],
          ["", (w) => <Save name={`${w.id}.dsse.json`} content={w.envelope} />],
        ]} />
      )}</Show>
    </Card>
  );
}
