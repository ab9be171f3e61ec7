import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { api, take, type Schemas } from "../../api/client";
import { Show } from "../../show";
import { Badge, Card, CopyText, Empty, Progress, Table, type Tone } from "../../ui";
import { isMoving, isOver } from "./live";

type Node = Schemas["LeaseNode"];

const tones: Record<Node["state"], Tone> = { held: "calm", preparing: "warn", in_use: "good", cleaning: "warn", released: "calm", quarantined: "bad" };

/** Nodes shows each machine: how far it is, how to log in, and its GPUs. */
export function Nodes({ lease: l }: { lease: Schemas["Lease"] }) {
  const nodes = useQuery({
    queryKey: ["lease", l.id, "nodes", l.last_event], placeholderData: keepPreviousData, refetchInterval: isOver(l) ? false : isMoving(l) ? 1_000 : 5_000,
    queryFn: () => take(api.GET("/v1/leases/{lease_id}/nodes", { params: { path: { lease_id: l.id } } })),
  });
  return (
    <Card title="Nodes">
      <Show query={nodes} what="nodes">{({ items }) => items.length === 0 ? <Empty title="No nodes are held">They appear when the lease is booked, and are let go when it has ended.</Empty> : (
        <Table caption="Nodes" rows={items} id={(n) => n.allocation_id} columns={[
          ["Node", (n) => <><span className="font-semibold">{n.node}</span>{n.leaf && <><br /><span className="text-xs text-soft">{n.leaf}</span></>}</>],
          ["State", (n) => <><Badge tone={tones[n.state]}>{n.state.replace("_", " ")}</Badge>{n.reason && <p className="mt-1 text-xs">{n.reason}</p>}</>],
          ["Progress", (n) => <NodeProgress node={n} />],
          ["SSH", (n) => n.access ? <CopyText text={n.access.command} /> : <span className="text-soft">{isOver(l) ? "ended" : "when it is ready"}</span>],
        ]} below={(n) => <Parts node={n} />} />
      )}</Show>
    </Card>
  );
}

function NodeProgress({ node: n }: { node: Node }) {
  const { step, phase, percent } = n.progress;
  if (!step) return <span className="text-soft">–</span>;
  if (percent >= 100) return <span className="text-soft">{step}: done</span>;
  return <div className="min-w-28"><span className="text-xs">{step}{phase && `: ${phase}`}</span><Progress percent={percent} label={`Progress of ${n.node}`} /></div>;
}

function Parts({ node: n }: { node: Node }) {
  return (
    <details className="text-xs">
      <summary className="cursor-pointer text-soft">{n.gpus.length} GPU{n.gpus.length === 1 ? "" : "s"}{n.access && ", host keys"}</summary>
      <ul className="mt-1 grid gap-1 sm:grid-cols-2">
        {n.gpus.map((g) => <li key={g.uuid} className="min-w-0 break-words">Bay {g.bay}: {g.model} <code className="break-all text-soft">{g.uuid}</code></li>)}
      </ul>
      {n.access?.host_keys.map((key) => <p key={key} className="mt-1">Host key <code className="break-all">{key}</code></p>)}
    </details>
  );
}
