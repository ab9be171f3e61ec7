import type { Schemas } from "../../api/client";

export interface Point { at: number; value: number }
export type Of = "mean" | "sum";

const bucket = 5_000;

/** combine makes one line of several devices' samples: their mean, or the sum of their means. Steps are of five seconds. */
export function combine(series: Schemas["MetricSeries"][], of: Of): Point[] {
  const buckets = new Map<number, Map<number, { sum: number; n: number }>>();
  series.forEach((s, device) => {
    for (const p of s.points) {
      const at = Math.floor(Date.parse(p.at) / bucket) * bucket;
      const devices = buckets.get(at) ?? new Map<number, { sum: number; n: number }>();
      const known = devices.get(device) ?? { sum: 0, n: 0 };
      buckets.set(at, devices.set(device, { sum: known.sum + p.value, n: known.n + 1 }));
    }
  });
  return [...buckets].sort(([a], [b]) => a - b).map(([at, devices]) => {
    const total = [...devices.values()].reduce((sum, d) => sum + d.sum / d.n, 0);
    return { at, value: of === "sum" ? total : total / devices.size };
  });
}
