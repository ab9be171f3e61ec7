import { useQuery } from "@tanstack/react-query";
import { Line, LineChart, ResponsiveContainer, Tooltip, XAxis, YAxis } from "recharts";
import { api, take, type Schemas } from "../api/client";
import { Show } from "../show";
import { Empty } from "../ui";

const meters: [string, string, string][] = [
  ["gpu_utilization_percent", "GPU utilization", "%"], ["gpu_power_watts", "GPU power", "W"], ["gpu_temperature_celsius", "GPU temperature", "°C"],
];

/** Charts shows the mean over the lease's GPUs, live. */
export function Charts({ lease }: { lease: string }) {
  const metrics = useQuery({ queryKey: ["lease", lease, "metrics"], queryFn: () => take(api.GET("/v1/leases/{lease_id}/metrics", { params: { path: { lease_id: lease } } })), refetchInterval: 5_000 });
  return (
    <Show query={metrics} what="meters">
      {({ series }) => series.length === 0
        ? <Empty title="No readings yet">The first ones come within ten seconds.</Empty>
        : <div className="grid grid-cols-[minmax(0,1fr)] gap-4 md:grid-cols-3">{meters.map(([name, title, unit]) => <Chart key={name} title={title} unit={unit} points={mean(series.filter((s) => s.metric === name))} />)}</div>}
    </Show>
  );
}

type Point = { at: number; value: number };

function mean(series: Schemas["MetricSeries"][]): Point[] {
  const sums = new Map<number, { sum: number; n: number }>();
  for (const s of series) {
    for (const p of s.points) {
      const at = Math.floor(Date.parse(p.at) / 5_000) * 5_000;
      const known = sums.get(at) ?? { sum: 0, n: 0 };
      sums.set(at, { sum: known.sum + p.value, n: known.n + 1 });
    }
  }
  return [...sums].sort(([a], [b]) => a - b).map(([at, { sum, n }]) => ({ at, value: sum / n }));
}

function Chart({ title, unit, points }: { title: string; unit: string; points: Point[] }) {
  const last = points.at(-1);
  return (
    <figure className="min-w-0">
      <figcaption className="mb-1 text-sm"><span className="text-soft">{title}, mean</span> <strong>{last ? `${Math.round(last.value)} ${unit}` : "–"}</strong></figcaption>
      <div className="h-36 overflow-hidden">
        <ResponsiveContainer width="100%" height="100%">
          <LineChart accessibilityLayer={false} data={points} margin={{ top: 4, right: 4, bottom: 0, left: 0 }}>
            <XAxis dataKey="at" type="number" domain={["dataMin", "dataMax"]} tickFormatter={(at: number) => new Date(at).toLocaleTimeString()} fontSize={10} stroke="var(--soft)" />
            <YAxis width={34} fontSize={10} stroke="var(--soft)" domain={["auto", "auto"]} />
            <Tooltip labelFormatter={(at) => new Date(Number(at)).toLocaleTimeString()} formatter={(value) => [`${Math.round(Number(value))} ${unit}`, title]} contentStyle={{ background: "var(--panel)", border: "1px solid var(--line)" }} />
            <Line dataKey="value" stroke="var(--accent)" dot={points.length < 3} strokeWidth={2} isAnimationActive={false} />
          </LineChart>
        </ResponsiveContainer>
      </div>
    </figure>
  );
}
