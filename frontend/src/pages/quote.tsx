import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, once, Problem, take, type Schemas } from "../api/client";
import { duration, money, rate } from "../format";
import { paths } from "../routes";
import { Refusal, Show } from "../show";
import { Alert, Badge, Button, Card, Facts, Instant, Page } from "../ui";
import { AddSSHKey } from "./keys";

export function QuotePage() {
  const { id = "" } = useParams();
  const quote = useQuery({ queryKey: ["quote", id], queryFn: () => take(api.GET("/v1/quotes/{quote_id}", { params: { path: { quote_id: id } } })) });
  return <Page title="Quote" intro="Firm in price until it expires. Booking takes the capacity and holds the worst case, or does neither."><Show query={quote} what="the quote">{(q) => <Checkout quote={q} />}</Show></Page>;
}

function Checkout({ quote: q }: { quote: Schemas["Quote"] }) {
  const left = useCountdown(q.expires_at);
  const keys = useQuery({ queryKey: ["ssh-keys"], queryFn: () => take(api.GET("/v1/ssh-keys")) });
  const balance = useQuery({ queryKey: ["balance"], queryFn: () => take(api.GET("/v1/billing/balance")) });
  const [chosen, setChosen] = useState<string[] | null>(null);
  const selected = chosen ?? keys.data?.items.map((k) => k.id) ?? [];
  const navigate = useNavigate();
  const queries = useQueryClient();
  const [key] = useState(once);
  const book = useMutation({
    mutationFn: () => take(api.POST("/v1/leases", { params: { header: key }, body: { quote_id: q.id, ssh_key_ids: selected } })),
    onSuccess: (lease) => {
      void queries.invalidateQueries();
      void navigate(paths.lease(lease.id));
    },
  });
  if (q.lease_id) return <Alert tone="good" title="This quote was booked"><Link className="underline" to={paths.lease(q.lease_id)}>Go to the lease</Link></Alert>;
  const short = balance.data && balance.data.available.amount < q.total.amount;
  const why = left <= 0 ? "The quote has expired" : selected.length === 0 ? "Choose an SSH key first" : undefined;
  return (
    <div className="grid grid-cols-[minmax(0,1fr)] gap-4 lg:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
      <div className="flex min-w-0 flex-col gap-4">
        <Card title="What you get">
          <Facts rows={[
            ["Type", `${q.instances} × ${q.instance_type}`],
            ["Where", q.site],
            ["When", <><Instant at={q.window.start} /> – <Instant at={q.window.end} /> ({duration((Date.parse(q.window.end) - Date.parse(q.window.start)) / 1000)})</>],
            ["Class", q.class === "on_demand" ? "on demand: starts as soon as it is ready" : "reserved"],
            ["Topology", q.leaves_spanned > 0 ? `${q.leaves_spanned} leaf switch per rail` : "no InfiniBand"],
            ["A node fails", { replace: "it is replaced at once", ask: "you are asked", keep: "the rest is kept" }[q.failure_policy]],
          ]} />
        </Card>
        <Card title="What it costs">
          <Facts rows={[
            ["Price", rate(q.rate)],
            ["Subtotal", money(q.subtotal)],
            [`Tax (${q.tax_rate_bps / 100} %)`, money(q.tax)],
            ["Total at worst", <strong key="t">{money(q.total)}</strong>],
          ]} />
          <p className="mt-3 text-sm text-soft">This much is held when you book. You pay for delivered time only; the rest of the hold goes back at the end.</p>
        </Card>
        <Card title="When plans change">
          <ul className="list-disc pl-5 text-sm">
            {q.refund_schedule.map((s) => <li key={s.notice_seconds}>Cancelled {s.notice_seconds > 0 ? `at least ${duration(s.notice_seconds)} before the start` : "later, before the start"}: {s.refund_bps / 100} % back</li>)}
            <li>Ended early: {q.early_refund_bps / 100} % of the unused time back</li>
          </ul>
          <p className="mt-2 text-xs break-all text-soft">Terms {q.terms_digest}</p>
        </Card>
      </div>
      <Card title="Book">
        <div className="flex flex-col gap-4">
          <p className="text-sm">{left > 0 ? <>Expires in <strong>{duration(left)}</strong></> : <Badge tone="bad">Expired</Badge>}</p>
          <Show query={keys} what="SSH keys">
            {({ items }) => (
              <fieldset className="flex min-w-0 flex-col gap-2 text-sm">
                <legend className="mb-1 font-medium">SSH keys that may log in</legend>
                {items.map((k) => (
                  <label key={k.id} className="flex min-w-0 items-center gap-2">
                    <input type="checkbox" className="size-4" checked={selected.includes(k.id)}
                      onChange={(e) => setChosen(e.target.checked ? [...selected, k.id] : selected.filter((other) => other !== k.id))} />
                    {k.name} <code className="truncate text-xs text-soft">{k.fingerprint}</code>
                  </label>
                ))}
                {items.length === 0 && <AddSSHKey />}
              </fieldset>
            )}
          </Show>
          <Show query={balance} what="your balance">{(b) => <p className="text-sm">Available: <strong>{money(b.available)}</strong></p>}</Show>
          {short && <Alert tone="warn" title="Your balance does not suffice"><Link className="underline" to={paths.billing}>Top up first</Link></Alert>}
          <Refusal error={book.error} next={<Next error={book.error} />} />
          <Button kind="primary" why={why} busy={book.isPending} onClick={() => book.mutate()}>Book for {money(q.total)} at worst</Button>
        </div>
      </Card>
    </div>
  );
}

function Next({ error }: { error: Error | null }) {
  const status = error instanceof Problem ? error.status : 0;
  if (status === 402) return <Link className="underline" to={paths.billing}>Top up your balance</Link>;
  if (status === 409 || status === 410) return <Link className="underline" to={paths.market}>Look for other options</Link>;
  return null;
}

/** useCountdown is the seconds left until the instant. */
export function useCountdown(until: string): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return (Date.parse(until) - now) / 1000;
}
