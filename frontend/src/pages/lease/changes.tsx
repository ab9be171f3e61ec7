import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, once, Problem, take, takeVersioned, type Schemas } from "../../api/client";
import { rate } from "../../format";
import { Refusal } from "../../show";
import { Alert, Button, Dialog, Facts, Field, Input, Instant, Money } from "../../ui";

type Lease = Schemas["Lease"];

/** Changes are extending and ending, each with its price before the click. */
export function Changes({ lease: l }: { lease: Lease }) {
  const [open, setOpen] = useState<"extend" | "end" | null>(null);
  const [done, setDone] = useState("");
  if (!["reserved", "provisioning", "active"].includes(l.state) || l.wanted_end) return null;
  const close = (what = "") => { setOpen(null); setDone(what); };
  return (
    <div className="mt-4 flex flex-col gap-3 border-t border-line pt-4">
      <div className="flex flex-wrap gap-3">
        <Button onClick={() => setOpen("extend")}>Extend…</Button>
        <Button kind="danger" onClick={() => setOpen("end")}>{l.state === "reserved" ? "Cancel…" : "End early…"}</Button>
      </div>
      {done && <Alert tone="good" title={done} />}
      {open === "extend" && <Extend lease={l} close={close} />}
      {open === "end" && <End lease={l} close={close} />}
    </div>
  );
}

type DialogProps = { lease: Lease; close: (done?: string) => void };

/** version is the contract's, read with the price: whoever changed it in between makes the change fail, not the price wrong. */
async function version(id: string): Promise<string> {
  return (await takeVersioned(api.GET("/v1/leases/{lease_id}", { params: { path: { lease_id: id } } }))).etag;
}

function Extend({ lease: l, close }: DialogProps) {
  const queries = useQueryClient();
  const [hours, setHours] = useState("1");
  const path = { lease_id: l.id };
  const send = (end: string, etag: string, dry: boolean) => take(api.POST("/v1/leases/{lease_id}/extensions", { params: { path, query: { dry_run: dry }, header: { ...once(), "If-Match": etag } }, body: { end } }));
  const offer = useMutation({
    mutationFn: async () => {
      const end = new Date(Date.parse(l.end) + Math.round(Number(hours) * 3600) * 1000).toISOString(), etag = await version(l.id);
      return { etag, end, price: await send(end, etag, true) };
    },
  });
  const apply = useMutation({
    mutationFn: ({ end, etag }: { end: string; etag: string }) => send(end, etag, false),
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ["lease", l.id] });
      close("Extended");
    },
  });
  const made = offer.data;
  return (
    <Dialog title="Extend the lease" close={close}>
      <form className="flex flex-wrap items-end gap-3" onSubmit={(e) => { e.preventDefault(); apply.reset(); offer.mutate(); }}>
        <div className="w-36"><Field label="Extend by hours"><Input type="number" min={0.01} step="any" required value={hours} onChange={(e) => { setHours(e.target.value); offer.reset(); }} /></Field></div>
        <Button type="submit" busy={offer.isPending} why={Number(hours) > 0 ? undefined : "Say by how much first."}>What would it cost?</Button>
      </form>
      <Refusal error={offer.error} next={<p>Another time may be free, or less of it.</p>} />
      {made && (
        <>
          <Facts rows={[
            ["New end", <Instant key="e" at={made.price.window.end} />], ["Price", rate(made.price.rate)], ["Subtotal", <Money key="s" of={made.price.subtotal} />],
            ["Tax", <Money key="t" of={made.price.tax} />], ["More at worst", <Money key="m" of={made.price.total} strong />],
          ]} />
          <p className="text-sm text-soft">This much more is held. You pay for delivered time only.</p>
          <Refusal error={apply.error} next={<Stale error={apply.error} />} />
          <Button kind="primary" busy={apply.isPending} onClick={() => apply.mutate(made)}>Extend for <Money of={made.price.total} /></Button>
        </>
      )}
    </Dialog>
  );
}

function End({ lease: l, close }: DialogProps) {
  const queries = useQueryClient();
  const path = { lease_id: l.id };
  const send = (etag: string, dry: boolean) => take(api.POST("/v1/leases/{lease_id}/cancellation", { params: { path, query: { dry_run: dry }, header: { ...once(), "If-Match": etag } } }));
  const offer = useMutation({
    mutationFn: async () => {
      const etag = await version(l.id);
      return { etag, price: await send(etag, true) };
    },
  });
  const apply = useMutation({
    mutationFn: (etag: string) => send(etag, false),
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ["lease", l.id] });
      close();
    },
  });
  const made = offer.data;
  const cancel = l.state === "reserved";
  return (
    <Dialog title={cancel ? "Cancel the lease" : "End the lease early"} close={close}>
      <p className="text-sm">{cancel ? "The capacity goes back to the market." : "Access ends at once, and everything on the nodes is wiped. This cannot be undone."}</p>
      {!made && <Button busy={offer.isPending} onClick={() => offer.mutate()}>What does it cost?</Button>}
      <Refusal error={offer.error} />
      {made && (
        <>
          <Facts rows={[["Given back", <Money key="r" of={made.price.refund} strong />], ["Costs for the rest", <Money key="f" of={made.price.fee} strong />], ["From", <Instant key="e" at={made.price.effective_at} />]]} />
          <Refusal error={apply.error} next={<Stale error={apply.error} />} />
          <div className="flex flex-wrap gap-3">
            <Button kind="danger" busy={apply.isPending} onClick={() => apply.mutate(made.etag)}>{made.price.kind === "cancel" ? "Cancel the lease" : "End the lease now"}</Button>
            <Button onClick={() => close()}>Keep it</Button>
          </div>
        </>
      )}
    </Dialog>
  );
}

function Stale({ error }: { error: Error | null }) {
  if (!(error instanceof Problem) || error.status !== 412) return null;
  return <p>Somebody has changed the lease since you saw the price. Close this, look at the lease, and ask for the price again.</p>;
}
