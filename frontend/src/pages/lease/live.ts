import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { api, Problem, take, type Schemas } from "../../api/client";

type Lease = Schemas["Lease"];

export function isOver(lease: Lease): boolean {
  return lease.state === "closed" || lease.state === "cancelled";
}

/** isMoving: nodes are being made ready or taken back, and progress changes between events. */
export function isMoving(lease: Lease): boolean {
  return lease.state === "provisioning" || lease.state === "releasing";
}

/** useLiveLease keeps a long poll open: the page changes when the lease does, without reloading. Progress is no event, and is read each second. */
export function useLiveLease(id: string) {
  const queries = useQueryClient();
  const lease = useQuery({ queryKey: ["lease", id], queryFn: () => take(api.GET("/v1/leases/{lease_id}", { params: { path: { lease_id: id } } })), staleTime: Infinity, refetchInterval: ({ state }) => state.data && isMoving(state.data) ? 1_000 : false });
  const ready = lease.data !== undefined;
  useEffect(() => {
    if (!ready) return;
    const stop = new AbortController();
    void follow(id, stop.signal, () => queries.getQueryData<Lease>(["lease", id]), (next) => queries.setQueryData(["lease", id], next));
    return () => stop.abort();
  }, [id, ready, queries]);
  return lease;
}

/** follow asks again and again until the lease is over; what a retry cannot heal ends it too. */
async function follow(id: string, signal: AbortSignal, known: () => Lease | undefined, learn: (lease: Lease) => void): Promise<void> {
  for (let lease = known(); lease && !isOver(lease) && !signal.aborted; lease = known()) {
    try {
      const next = await take(api.GET("/v1/leases/{lease_id}", { params: { path: { lease_id: id }, query: { wait: "30s", after_event: lease.last_event } }, signal }));
      if (!signal.aborted) learn(next);
    } catch (error) {
      if (signal.aborted || (error instanceof Problem && [401, 403, 404].includes(error.status))) return;
      await new Promise((resolve) => setTimeout(resolve, 3_000));
    }
  }
}
