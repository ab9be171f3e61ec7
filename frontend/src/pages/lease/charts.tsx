import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Line, LineChart, ResponsiveContainer, Tooltip, XAxis, YAxis } from "recharts";
import { api, take } from "../../api/client";
import { Show } from "../../show";
import { Empty, Field, Select } from "../../ui";
import { combine, type Of, type Point } from "./series";

interface Meter { metric: string; title: string; unit: string; of: Of; scale: number }

const meters: Meter[] = [
  { metric: "gpu_utilization_percent", title: "GPU utilization, mean", unit: "%", of: "mean", scale: 1 },
  { metric: "gpu_memory_used_bytes", title: "GPU memory used, sum", unit: "GiB", of: "sum", scale: 2 ** 30 },
  { metric: "gpu_power_watts", title: "GPU power, sum", unit: "W", of: "sum", scale: 1 },
  { metric: "gpu_temperature_celsius", title: "GPU temperature, mean", unit: "°C", of: "mean", scale: 1 },
  { metric: "ib_xmit_bytes_per_second", title: "InfiniBand sent, sum", unit: "Gb/s", of: "sum", scale: 1e9 / 8 },
  { metric: "ib_rcv_bytes_per_second", title: "InfiniBand received, sum", unit: "Gb/s", of: "sum", scale: 1e9 / 8 },
];

/** Charts shows the last ten minutes of the lease's devices, of all nodes or of one. */
export function Charts({ lease }: { lease: string }) {
  const [node, setNode] = useState("");
  const metrics = useQuery({ queryKey: ["lease", lease, "metrics"], queryFn: () => take(api.GET("/v1/leases/{lease_id}/metrics", { params: { path: { lease_id: lease } } })), refetchInterval: 5_000 });
  return (
    <Show query={metrics} what="meters">
      {({ series }) => {
        if (series.length === 0) return <Empty title="No readings yet">The first ones come within ten seconds.</Empty>;
        const nodes = [...new Set(series.map((s) => s.node))].sort();
        const shown = series.filter((s) => node === "" || s.node === node);
        return (
          <div className="flex flex-col gap-4">
            {nodes.length > 1 && (
              <div className="max-w-60"><Field label="Of">
                <Select value={node} onChange={(e) => setNode(e.target.value)}><option value="">all nodes</option>{nodes.map((n) => <option key={n}>{n}</option>)}</Select>
              </Field></div>
            )}
            <div className="grid grid-cols-[minmax(0,1fr)] gap-4 md:grid-cols-3">
              {meters.filter((m) => series.some((s) => s.metric === m.metric)).map((m) => <Chart key={m.metric} meter={m} points={combine(shown.filter((s) => s.metric === m.metric), m.of).map((p) => ({ ...p, value: p.value / m.scale }))} />)}
            </div>
          </div>
        );
      }}
    </Show>
  );
}

function round(value: number): string {
  return value.toLocaleString(undefined, { maximumFractionDigits: value < 10 ? 1 : 0 });
}

function Chart({ meter: { title, unit }, points }: { meter: Meter; points: Point[] }) {
  const last = points.at(-1);
  const shown = last ? `${round(last.value)} ${unit}` : "–";
  return (
    <figure className="min-w-0">
      <figcaption className="mb-1 text-sm"><span className="text-soft">{title}</span> <strong>{shown}</strong></figcaption>
      <div className="h-32 overflow-hidden" aria-hidden>
        <ResponsiveContainer width="100%" height="100%">
          <LineChart accessibilityLayer={false} data={points} margin={{ top: 4, right: 4, bottom: 0, left: 0 }}>
            <XAxis dataKey="at" type="number" domain={["dataMin", "dataMax"]} tickFormatter={(at: number) => new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" })} minTickGap={40} fontSize={10} stroke="var(--soft)" />
            <YAxis width={48} fontSize={10} stroke="var(--soft)" domain={[0, "auto"]} tickFormatter={round} />
            <Tooltip labelFormatter={(at) => new Date(Number(at)).toLocaleTimeString()} formatter={(value) => [`${round(Number(value))} ${unit}`, title]} contentStyle={{ background: "var(--panel)", border: "1px solid var(--line)" }} />
            <Line dataKey="value" stroke="var(--accent)" dot={points.length < 3} strokeWidth={2} isAnimationActive={false} />
          </LineChart>
        </ResponsiveContainer>
      </div>
    </figure>
  );
}
