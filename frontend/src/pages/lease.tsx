import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Copy, Download } from "lucide-react";
import { lazy, Suspense, useEffect, useState } from "react";
import { useParams } from "react-router";
import { api, once, take, type Schemas } from "../api/client";
import { duration, money, rate } from "../format";
import { Refusal, Show } from "../show";
import { Alert, Badge, Button, Card, Empty, Facts, Field, Input, Instant, Loading, Page, Progress, Table } from "../ui";
import { LeaseState } from "./leases";
import { useCountdown } from "./quote";

const Charts = lazy(async () => ({ default: (await import("./charts")).Charts }));
type Lease = Schemas["Lease"];

export function LeasePage() {
  const { id = "" } = useParams();
  const path = { lease_id: id };
  const lease = useLiveLease(id);
  const over = lease.data ? ["closed", "cancelled"].includes(lease.data.state) : false;
  const event = lease.data?.last_event ?? 0;
  const every = over ? false : 5_000;
  const nodes = useQuery({ queryKey: ["lease", id, "nodes", event], placeholderData: keepPreviousData, queryFn: () => take(api.GET("/v1/leases/{lease_id}/nodes", { params: { path } })), refetchInterval: lease.data?.progress.step ? 1_000 : every });
  const isolation = useQuery({ queryKey: ["lease", id, "isolation", event], placeholderData: keepPreviousData, queryFn: () => take(api.GET("/v1/leases/{lease_id}/isolation", { params: { path } })) });
  const events = useQuery({ queryKey: ["lease", id, "events", event], placeholderData: keepPreviousData, queryFn: async () => (await take(api.GET("/v1/leases/{lease_id}/events", { params: { path, query: { limit: 200 } } }))) as Schemas["LeaseEventList"] });
  const usage = useQuery({ queryKey: ["lease", id, "usage", event], placeholderData: keepPreviousData, queryFn: () => take(api.GET("/v1/leases/{lease_id}/usage", { params: { path } })), refetchInterval: every });
  return (
    <Show query={lease} what="the lease">
      {(l) => (
        <Page title={l.name} intro={`${l.instances} × ${l.instance_type} at ${l.site}`} action={<LeaseState lease={l} />}>
          {l.reason && <Alert tone={l.outcome === "failed" ? "bad" : "warn"} title={l.reason} />}
          <Timeline lease={l} />
          <div className="grid grid-cols-[minmax(0,1fr)] gap-4 lg:grid-cols-2">
            <Card title="Contract">
              <Facts rows={[
                ["Start", <Instant key="s" at={l.start} />], ["End", <Instant key="e" at={l.end} />],
                ...(l.active_at ? [["Active since", <Instant key="a" at={l.active_at} />] as [string, React.ReactNode]] : []),
                ["Remaining", <Remaining key="r" lease={l} />],
                ["Id", <code key="i" className="text-xs">{l.id}</code>],
              ]} />
              <Changes lease={l} />
            </Card>
            <Card title="Cost">
              <Facts rows={[["Held", money(l.held)], ["Charged so far", money(l.charged)]]} />
              <Show query={usage} what="usage">{(u) => (
                <div className="mt-3 flex flex-col gap-3">
                  {!over && <Facts rows={[["Forecast to the end", money(u.forecast)]]} />}
                  {u.lines.length > 0 && (
                    <Table caption="Charge lines" head={["Line", "Amount", "Tax"]}>
                      {u.lines.map((line) => <tr key={line.id}><td>{line.description}</td><td>{money(line.amount)}</td><td>{money(line.tax)}</td></tr>)}
                    </Table>
                  )}
                </div>
              )}</Show>
            </Card>
          </div>
          <Card title="Nodes"><Show query={nodes} what="nodes">{({ items }) => <Nodes nodes={items} />}</Show></Card>
          {l.active_at && !over && <Card title="Live"><Suspense fallback={<Loading what="charts" />}><Charts lease={id} /></Suspense></Card>}
          <Card title="Isolation"><Show query={isolation} what="isolation">{(i) => <Isolation isolation={i} />}</Show></Card>
          {over && <Wipes lease={id} />}
          <Card title="Events">
            <Show query={events} what="events">{({ items }) => (
              <Table caption="The lease's log" head={["#", "When", "What", "Who"]}>
                {items.toReversed().map((e) => <tr key={e.seq}><td>{e.seq}</td><td className="whitespace-nowrap"><Instant at={e.at} /></td><td>{e.type}</td><td className="text-xs text-soft">{e.actor}</td></tr>)}
              </Table>
            )}</Show>
          </Card>
        </Page>
      )}
    </Show>
  );
}

/** useLiveLease keeps a long poll open: the page changes when the lease does, without reloading. */
function useLiveLease(id: string) {
  const queries = useQueryClient();
  const lease = useQuery({ queryKey: ["lease", id], queryFn: () => take(api.GET("/v1/leases/{lease_id}", { params: { path: { lease_id: id } } })), staleTime: Infinity });
  const ready = lease.data !== undefined;
  useEffect(() => {
    if (!ready) return;
    const stop = new AbortController();
    const follow = async () => {
      while (!stop.signal.aborted) {
        const known = queries.getQueryData<Lease>(["lease", id]);
        if (known && ["closed", "cancelled"].includes(known.state)) return;
        try {
          const next = await take(api.GET("/v1/leases/{lease_id}", { params: { path: { lease_id: id }, query: { wait: "25s", after_event: known?.last_event ?? 0 } }, signal: stop.signal }));
          if (!stop.signal.aborted) queries.setQueryData(["lease", id], next);
        } catch {
          await new Promise((resolve) => setTimeout(resolve, 3_000));
        }
      }
    };
    void follow();
    return () => stop.abort();
  }, [id, ready, queries]);
  return lease;
}

const steps: [Lease["state"], string][] = [["reserved", "Reserved"], ["provisioning", "Provisioning"], ["active", "Active"], ["releasing", "Releasing"], ["closed", "Closed"]];

function Timeline({ lease: l }: { lease: Lease }) {
  const at = steps.findIndex(([state]) => state === l.state);
  return (
    <Card>
      <ol className="flex flex-wrap gap-x-6 gap-y-2 text-sm" aria-label="State">
        {(l.state === "cancelled" ? [["cancelled", "Cancelled"]] : steps).map(([state, name], i) => (
          <li key={state} aria-current={i === at ? "step" : undefined} className={`flex items-center gap-2 ${i === at ? "font-bold" : i < at ? "text-good" : "text-soft"}`}>
            <span aria-hidden className={`inline-block size-2.5 rounded-full ${i <= at ? "bg-current" : "border border-current"}`} />{name}
          </li>
        ))}
      </ol>
      {l.progress.step && (
        <div className="mt-3" aria-live="polite">
          <p className="mb-1 text-sm">{l.progress.step}: {l.progress.done} of {l.progress.total} nodes</p>
          <Progress percent={l.progress.percent} label={`Progress of ${l.progress.step}`} />
        </div>
      )}
    </Card>
  );
}

function Remaining({ lease: l }: { lease: Lease }) {
  const toStart = useCountdown(l.start), toEnd = useCountdown(l.wanted_end ?? l.end);
  if (["closed", "cancelled", "releasing"].includes(l.state)) return <>ended</>;
  return <>{l.state === "active" ? duration(toEnd) : toStart > 0 ? `starts in ${duration(toStart)}` : "starting"}</>;
}

function Changes({ lease: l }: { lease: Lease }) {
  const queries = useQueryClient();
  const [hours, setHours] = useState("1");
  const path = { lease_id: l.id };
  const end = new Date(Date.parse(l.end) + Math.round(Number(hours) * 3600) * 1000);
  // The version that a change refers to is read together with the quote that the customer sees.
  const read = async () => (await api.GET("/v1/leases/{lease_id}", { params: { path } })).response.headers.get("ETag") ?? "";
  const extend = useMutation({
    mutationFn: async (dry: boolean) => take(api.POST("/v1/leases/{lease_id}/extensions", { params: { path, query: { dry_run: dry }, header: { ...once(), "If-Match": await read() } }, body: { end: end.toISOString() } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["lease", l.id] }),
  });
  const stop = useMutation({
    mutationFn: async (dry: boolean) => take(api.POST("/v1/leases/{lease_id}/cancellation", { params: { path, query: { dry_run: dry }, header: { ...once(), "If-Match": await read() } } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["lease", l.id] }),
  });
  if (!["reserved", "provisioning", "active"].includes(l.state) || l.wanted_end) return null;
  const offer = extend.data && !extend.data.applied ? extend.data : null;
  const leave = stop.data && !stop.data.applied ? stop.data : null;
  return (
    <div className="mt-4 flex flex-col gap-3 border-t border-line pt-4">
      <div className="flex flex-wrap items-end gap-3">
        <div className="w-28"><Field label="Extend by hours"><Input type="number" min={0.01} step="any" value={hours} onChange={(e) => { setHours(e.target.value); extend.reset(); }} /></Field></div>
        <Button busy={extend.isPending} why={Number(hours) > 0 ? undefined : "Say by how much first"} onClick={() => extend.mutate(true)}>What would it cost?</Button>
        <Button kind="danger" busy={stop.isPending} onClick={() => stop.mutate(true)}>{l.state === "reserved" ? "Cancel…" : "End early…"}</Button>
      </div>
      <Refusal error={extend.error ?? stop.error} />
      {offer && (
        <Alert tone="calm" title={`Until ${end.toLocaleString()}: ${money(offer.total)} more at worst, at ${rate(offer.rate)}`}>
          <Button kind="primary" className="mt-2" busy={extend.isPending} onClick={() => extend.mutate(false)}>Extend for {money(offer.total)}</Button>
        </Alert>
      )}
      {extend.data?.applied && <Alert tone="good" title="Extended" />}
      {leave && (
        <Alert tone="warn" title={`${leave.kind === "cancel" ? "Cancelling" : "Ending now"} gives back ${money(leave.refund)} and costs ${money(leave.fee)} for the rest. Everything on the nodes is wiped.`}>
          <Button kind="danger" className="mt-2" busy={stop.isPending} onClick={() => stop.mutate(false)}>{leave.kind === "cancel" ? "Cancel the lease" : "End the lease now"}</Button>
        </Alert>
      )}
    </div>
  );
}

function Nodes({ nodes }: { nodes: Schemas["LeaseNode"][] }) {
  if (nodes.length === 0) return <Empty title="No nodes are held any more" />;
  return (
    <Table caption="Nodes" head={["Node", "GPUs", "State", "Progress", "SSH"]}>
      {nodes.map((n) => (
        <tr key={n.allocation_id}>
          <td className="font-semibold">{n.node}<br /><span className="text-xs font-normal text-soft">{n.leaf}</span></td>
          <td title={n.gpus.map((g) => g.uuid).join("\n")}>{n.gpus.length}</td>
          <td><Badge tone={n.state === "in_use" ? "good" : n.state === "quarantined" ? "bad" : "calm"}>{n.state.replace("_", " ")}</Badge>{n.reason && <p className="text-xs">{n.reason}</p>}</td>
          <td className="min-w-28">{n.progress.step && <><span className="text-xs">{n.progress.step} {n.progress.phase}</span><Progress percent={n.progress.percent} label={`Progress of ${n.node}`} /></>}</td>
          <td>{n.access ? <CopyText text={n.access.command} /> : <span className="text-soft">–</span>}</td>
        </tr>
      ))}
    </Table>
  );
}

function CopyText({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  return (
    <span className="flex items-center gap-2 whitespace-nowrap">
      <code className="rounded bg-calm-soft px-2 py-1 text-xs whitespace-nowrap">{text}</code>
      <button type="button" className="rounded p-2 text-soft hover:text-ink" aria-label={`Copy ${text}`}
        onClick={() => void navigator.clipboard.writeText(text).then(() => setCopied(true))}><Copy className="size-4" aria-hidden /></button>
      <span role="status" className="text-xs text-good">{copied ? "copied" : ""}</span>
    </span>
  );
}

function Isolation({ isolation: i }: { isolation: Schemas["LeaseIsolation"] }) {
  if (!i.applies) return <p className="text-sm text-soft">This type comes without InfiniBand: there is no partition to isolate.</p>;
  return (
    <div className="flex flex-col gap-3">
      <Facts rows={[["Partition key", <code key="k">{i.pkey ?? "–"}</code>], ["State", i.state ?? "–"], ["Ports", `${i.ports.filter((p) => p.joined).length} of ${i.ports.length} verified at both ends`]]} />
      {i.attestations.length > 0 && (
        <Table caption="Attestations" head={["Occasion", "Verdict", "When", ""]}>
          {i.attestations.map((a) => (
            <tr key={a.id}>
              <td>{a.occasion.replace("_", " ")}</td>
              <td><Badge tone={a.verdict === "isolated" ? "good" : a.verdict === "unknown" ? "warn" : "bad"}>{a.verdict.replace("_", " ")}</Badge></td>
              <td><Instant at={a.created_at} /></td>
              <td><Save name={`${a.id}.dsse.json`} content={a.envelope} /></td>
            </tr>
          ))}
        </Table>
      )}
      <p className="text-xs text-soft">Verify a download with <code>leasehold attest verify FILE</code>, or any DSSE tool and the keys at <a className="underline" href="/.well-known/attestation-keys.json">/.well-known/attestation-keys.json</a>.</p>
    </div>
  );
}

function Save({ name, content }: { name: string; content: unknown }) {
  const save = () => {
    const url = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    URL.revokeObjectURL(url);
  };
  return <Button onClick={save} aria-label={`Download ${name}`}><Download className="size-4" aria-hidden />Download</Button>;
}

function Wipes({ lease }: { lease: string }) {
  const wipes = useQuery({ queryKey: ["lease", lease, "wipes"], queryFn: () => take(api.GET("/v1/leases/{lease_id}/wipe-certificates", { params: { path: { lease_id: lease } } })) });
  return (
    <Card title="Wipe certificates">
      <Show query={wipes} what="certificates">{({ items }) => items.length === 0 ? <Empty title="Nothing had to be wiped" /> : (
        <Table caption="Wipe certificates" head={["Node", "Result", "When", ""]}>
          {items.map((w) => <tr key={w.id}><td>{w.node}</td><td><Badge tone={w.result === "wiped" ? "good" : "bad"}>{w.result}</Badge></td><td><Instant at={w.created_at} /></td><td><Save name={`${w.id}.dsse.json`} content={w.envelope} /></td></tr>)}
        </Table>
      )}</Show>
    </Card>
  );
}
