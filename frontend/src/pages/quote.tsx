import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, once, Problem, take, type Schemas } from "../api/client";
import { useCountdown } from "../countdown";
import { between, duration, local, money, rate } from "../format";
import { paths } from "../paths";
import { Refusal, Show } from "../show";
import { Alert, Badge, Button, Card, Duration, Facts, Field, Input, Instant, Money, Page } from "../ui";
import { AddSSHKey } from "./keys";

type Quote = Schemas["Quote"];

export function QuotePage() {
  const { id = "" } = useParams();
  const quote = useQuery({ queryKey: ["quote", id], queryFn: () => take(api.GET("/v1/quotes/{quote_id}", { params: { path: { quote_id: id } } })) });
  return (
    <Page title="Quote" intro="Firm in price until it expires. Booking takes the capacity and holds the worst case, or does neither.">
      <Show query={quote} what="the quote">
        {(q) => q.lease_id
          ? <Alert tone="good" title="This quote was booked"><Link className="underline" to={paths.lease(q.lease_id)}>Go to the lease</Link></Alert>
          : (
            <div className="grid grid-cols-[minmax(0,1fr)] items-start gap-4 lg:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
              <div className="flex min-w-0 flex-col gap-4"><What quote={q} /><Cost quote={q} /><Terms quote={q} /></div>
              <Book key={q.id} quote={q} />
            </div>
          )}
      </Show>
    </Page>
  );
}

const policies: Record<Schemas["FailurePolicy"], string> = { replace: "its outage is not billed; replacing it while the lease runs comes later", ask: "its outage is not billed, and you are told", keep: "the other nodes stay, and you pay for those only" };

function What({ quote: q }: { quote: Quote }) {
  return (
    <Card title="What you get">
      <Facts rows={[
        ["Type", `${q.instances} × ${q.instance_type}`],
        ["Where", q.site],
        ["When", <><Instant at={q.window.start} /> – <Instant at={q.window.end} />, <Duration seconds={between(q.window.start, q.window.end)} /></>],
        ["Class", q.class === "on_demand" ? "on demand: starts as soon as it is ready" : "reserved for this window"],
        ["Topology", q.leaves_spanned > 0 ? `${q.leaves_spanned} leaf switch${q.leaves_spanned > 1 ? "es" : ""} per rail` : "no InfiniBand"],
        ["If a node fails", policies[q.failure_policy]],
      ]} />
    </Card>
  );
}

function Cost({ quote: q }: { quote: Quote }) {
  const fees = q.total.amount - q.subtotal.amount - q.tax.amount; // whatever the total has besides
  return (
    <Card title="What it costs">
      <Facts rows={[
        ["Price", rate(q.rate)],
        ["Subtotal", <Money key="s" of={q.subtotal} />],
        ["Other fees", fees === 0 ? "none" : <Money key="f" of={{ ...q.total, amount: fees }} />],
        [`Tax (${q.tax_rate_bps / 100} %)`, <Money key="t" of={q.tax} />],
        ["Total at worst", <Money key="w" of={q.total} strong />],
      ]} />
      <p className="mt-3 text-sm text-soft">This much is held when you book. You pay for delivered time only; the rest of the hold goes back at the end.</p>
    </Card>
  );
}

function Terms({ quote: q }: { quote: Quote }) {
  return (
    <Card title="When plans change">
      <ul className="list-disc pl-5 text-sm">
        {q.refund_schedule.map((s) => <li key={s.notice_seconds}>Cancelled {s.notice_seconds > 0 ? `at least ${duration(s.notice_seconds)} before the start` : "later, before the start"}: {s.refund_bps / 100} % back</li>)}
        <li>Ended early: {q.early_refund_bps / 100} % of the unused time back</li>
      </ul>
      <p className="mt-2 text-xs break-all text-soft">Digest of the terms: {q.terms_digest}</p>
    </Card>
  );
}

function Book({ quote: q }: { quote: Quote }) {
  const left = useCountdown(q.expires_at);
  const keys = useQuery({ queryKey: ["ssh-keys"], queryFn: () => take(api.GET("/v1/ssh-keys", { params: { query: { limit: 200 } } })) });
  const balance = useQuery({ queryKey: ["balance"], queryFn: () => take(api.GET("/v1/billing/balance")), refetchInterval: 10_000 });
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState<string[] | null>(null);
  const selected = chosen ?? keys.data?.items.map((k) => k.id) ?? [];
  const navigate = useNavigate();
  const queries = useQueryClient();
  const book = useMutation({
    mutationFn: () => take(api.POST("/v1/leases", { params: { header: once() }, body: { quote_id: q.id, ssh_key_ids: selected, ...(name ? { name } : {}) } })),
    onSuccess: (lease) => {
      void queries.invalidateQueries();
      void navigate(paths.lease(lease.id));
    },
  });
  const expired = left <= 0;
  const rest = balance.data ? balance.data.available.amount - q.total.amount : 0;
  const why = expired ? "The quote has expired. Get a fresh one above." : rest < 0 ? "Your balance does not suffice." : selected.length === 0 ? "Choose an SSH key first." : undefined;
  return (
    <Card title="Book">
      <div className="flex flex-col gap-4">
        {expired ? <Expired quote={q} /> : <p className="text-sm">Expires in <strong><Duration seconds={left} /></strong></p>}
        <Field label="Name" hint="Left empty, the type's name"><Input maxLength={100} value={name} onChange={(e) => setName(e.target.value)} /></Field>
        <Show query={keys} what="SSH keys">{({ items }) => <Keys keys={items} selected={selected} select={setChosen} />}</Show>
        <Show query={balance} what="your balance">
          {(b) => <Facts rows={[["Available", <Money key="a" of={b.available} />], ["Held by booking", <Money key="h" of={q.total} />], ["Left after it", <Money key="l" of={{ ...b.available, amount: rest }} strong />]]} />}
        </Show>
        {rest < 0 && <Alert tone="warn" title={`${money({ ...q.total, amount: -rest })} are missing`}><Link className="underline" to={paths.billing}>Top up, then come back: the price stays until the quote expires</Link></Alert>}
        <Refusal error={book.error} next={<Next error={book.error} quote={q} />} />
        <Button kind="primary" why={why} busy={book.isPending} onClick={() => book.mutate()}>Book for {money(q.total)} at worst</Button>
      </div>
    </Card>
  );
}

function Keys({ keys, selected, select }: { keys: Schemas["SSHKey"][]; selected: string[]; select: (ids: string[]) => void }) {
  const toggle = (id: string, on: boolean) => select(on ? [...selected, id] : selected.filter((other) => other !== id));
  return (
    <fieldset className="flex min-w-0 flex-col gap-2 text-sm">
      <legend className="mb-1 font-medium">SSH keys that may log in</legend>
      {keys.map((k) => (
        <label key={k.id} className="flex min-h-8 min-w-0 items-center gap-2">
          <input type="checkbox" className="size-4 shrink-0" checked={selected.includes(k.id)} onChange={(e) => toggle(k.id, e.target.checked)} />
          <span className="shrink-0">{k.name}</span> <code className="min-w-0 truncate text-xs text-soft">{k.fingerprint}</code>
        </label>
      ))}
      <details open={keys.length === 0}>
        <summary className="cursor-pointer py-1 text-accent">Add an SSH key</summary>
        <div className="mt-2"><AddSSHKey added={(id) => select([...selected, id])} /></div>
      </details>
    </fieldset>
  );
}

/** Expired offers the same again: on-demand quotes start anew, windows stay. */
function Expired({ quote: q }: { quote: Quote }) {
  return <div className="flex flex-col gap-2"><p><Badge tone="bad">Expired</Badge></p><Again quote={q} site={q.site} window={q.class === "on_demand" ? null : q.window}>Get the same quote again</Again></div>;
}

function Again({ quote: q, site, window, children }: { quote: Quote; site: string; window: Schemas["Window"] | null; children: React.ReactNode }) {
  const navigate = useNavigate();
  const again = useMutation({
    mutationFn: () => take(api.POST("/v1/quotes", {
      params: { header: once() },
      body: {
        instance_type: q.instance_type, instances: q.instances, project_id: q.project_id, topology: q.topology, failure_policy: q.failure_policy, site,
        ...(window ? { window } : { duration_seconds: between(q.window.start, q.window.end) }),
      },
    })),
    onSuccess: (fresh) => navigate(paths.quote(fresh.id)),
  });
  return <><Button busy={again.isPending} onClick={() => again.mutate()}>{children}</Button><Refusal error={again.error} next={<Link className="underline" to={paths.market}>Look at the market</Link>} /></>;
}

interface Offer { site: string; start: string; end: string; total_minor: number }

function isOffer(o: unknown): o is Offer {
  const offer = o as Partial<Offer> | null;
  return typeof offer?.site === "string" && typeof offer.start === "string" && typeof offer.end === "string" && typeof offer.total_minor === "number";
}

/** Next is what to do about a refusal: pay in, take what else there is, or look again. */
function Next({ error, quote: q }: { error: Error | null; quote: Quote }) {
  const problem = error instanceof Problem ? error : null;
  if (problem?.status === 402) return <Link className="underline" to={paths.billing}>Top up your balance</Link>;
  if (problem?.status === 410) return <Expired quote={q} />;
  if (problem?.status !== 409) return null;
  const lease = problem.facts["lease_id"], options = problem.facts["options"];
  if (typeof lease === "string") return <Link className="underline" to={paths.lease(lease)}>Go to the lease</Link>;
  const offers = Array.isArray(options) ? options.filter(isOffer) : [];
  return (
    <>
      {offers.map((o) => (
        <Again key={o.site + o.start} quote={q} site={o.site} window={{ start: o.start, end: o.end }}>{o.site}, from {local(o.start)}: {money({ ...q.total, amount: o.total_minor })}</Again>
      ))}
      <Link className="underline" to={paths.market}>Look for other options</Link>
    </>
  );
}
