import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useSearchParams } from "react-router";
import { api, from, once, take, takePart, type Schemas } from "../api/client";
import { minorFrom, money } from "../format";
import { paths } from "../paths";
import { Refusal, Show, ShowList, useList } from "../show";
import { Alert, Badge, Button, Card, Dialog, Empty, Facts, Field, Input, Instant, Money, Page, Select, Table, type Tone } from "../ui";

export function Billing() {
  const [search, setSearch] = useSearchParams();
  const balance = useQuery({ queryKey: ["balance"], queryFn: () => take(api.GET("/v1/billing/balance")), refetchInterval: 10_000 });
  const open = search.get("invoice");
  return (
    <Page title="Billing" intro="What you have, what is held for leases, and what delivered time has cost.">
      <Show query={balance} what="your balance">
        {(b) => (
          <div className="grid grid-cols-[minmax(0,1fr)] gap-4 lg:grid-cols-[2fr_1fr]">
            <Card title="Balance">
              <div className="grid gap-4 sm:grid-cols-3">
                <Stat name="Available" of={b.available} strong />
                <Stat name="Cash" of={b.cash} />
                <Stat name="Held for leases" of={b.held} />
              </div>
              {b.credit_limit.amount > 0 && <p className="mt-3 text-sm text-soft">You may go below zero by up to {money(b.credit_limit)}.</p>}
              <Holds />
            </Card>
            <Card title="Top up"><TopUp balance={b} /></Card>
          </div>
        )}
      </Show>
      <Invoices open={(id) => setSearch({ invoice: id }, { preventScrollReset: true })} />
      <Usage />
      <Payments />
      {open && <InvoiceDialog id={open} close={() => setSearch({}, { preventScrollReset: true })} />}
    </Page>
  );
}

function Stat({ name, of, strong = false }: { name: string; of: Schemas["Money"]; strong?: boolean }) {
  return <div><p className="text-sm text-soft">{name}</p><p className={`tabular-nums ${strong ? "text-2xl font-bold" : "text-lg font-semibold"}`}>{money(of)}</p></div>;
}

/** Holds is what is held, lease by lease. */
function Holds() {
  const leases = useQuery({
    queryKey: ["leases", "held"], refetchInterval: 10_000,
    queryFn: () => take(api.GET("/v1/leases", { params: { query: { limit: 200, state: ["reserved", "provisioning", "active", "releasing"] } } })),
  });
  const held = leases.data?.items.filter((l) => l.held.amount > 0) ?? [];
  if (held.length === 0) return null;
  return (
    <div className="mt-4 border-t border-line pt-2">
      <Table caption="Holds" rows={held} id={(l) => l.id} columns={[
        ["Held for", (l) => <Link className="text-accent underline" to={paths.lease(l.id)}>{l.name}</Link>],
        ["Amount", (l) => <Money of={l.held} />],
        ["Until", (l) => <Instant at={l.end} />],
      ]} />
    </div>
  );
}

const cards: [string, string][] = [["pm_card_visa", "Visa, succeeds"], ["pm_card_chargeDeclined", "Declined"], ["pm_card_threeDSecure2Required", "Asks for 3-D Secure"]];

function TopUp({ balance }: { balance: Schemas["Balance"] }) {
  const queries = useQueryClient();
  const currency = balance.cash.currency;
  const [amount, setAmount] = useState("100");
  const [method, setMethod] = useState("pm_card_visa");
  const minor = minorFrom(amount, currency);
  const pay = useMutation({
    mutationFn: () => take(api.POST("/v1/billing/top-ups", { params: { header: once() }, body: { amount: { amount: minor ?? 0, currency }, payment_method: method } })),
    onSuccess: () => Promise.all([queries.invalidateQueries({ queryKey: ["balance"] }), queries.invalidateQueries({ queryKey: ["top-ups"] })]),
  });
  return (
    <form className="flex flex-col gap-3" onSubmit={(e) => { e.preventDefault(); pay.mutate(); }}>
      <Field label={`Amount in ${currency}`}><Input inputMode="decimal" value={amount} onChange={(e) => setAmount(e.target.value)} /></Field>
      {balance.gateway === "test" && (
        <Field label="Test card" hint="The test gateway: no real money moves">
          <Select value={method} onChange={(e) => setMethod(e.target.value)}>{cards.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</Select>
        </Field>
      )}
      <Refusal error={pay.error} />
      {pay.data && <Paid topUp={pay.data} />}
      <Button kind="primary" type="submit" busy={pay.isPending} why={minor ? undefined : "Give an amount, like 100 or 19.99."}>Pay in</Button>
    </form>
  );
}

function Paid({ topUp: t }: { topUp: Schemas["TopUp"] }) {
  if (t.state === "succeeded") return <Alert tone="good" title={`${money(t.amount)} were paid in`} />;
  if (t.state === "failed") return <Alert title={`The card was refused: ${t.failure ?? "no reason was given"}`}>Nothing was taken. Try another card.</Alert>;
  if (t.state === "requires_action" && t.action_url) return <Alert tone="warn" title="Your bank wants to confirm"><a className="underline" href={t.action_url}>Confirm the payment</a></Alert>;
  return <Alert tone="calm" title="The payment is under way">The balance rises when it has come through.</Alert>;
}

function Invoices({ open }: { open: (id: string) => void }) {
  const invoices = useList(["invoices"], (cursor) => takePart(api.GET("/v1/billing/invoices", { params: { query: from(cursor) } })));
  return (
    <Card title="Invoices">
      <ShowList query={invoices} what="invoices">{(items) => items.length === 0 ? <Empty title="No invoices yet">A draft appears when a lease has closed.</Empty> : (
        <Table caption="Invoices" rows={items} id={(i) => i.id} columns={[
          ["Number", (i) => i.number ?? <span className="text-soft">not yet</span>],
          ["State", (i) => <Badge tone={i.state === "final" ? "good" : "calm"}>{i.state}</Badge>],
          ["Made", (i) => <Instant at={i.created_at} />],
          ["Total", (i) => <Money of={i.total} />],
          ["Prepaid", (i) => <Money of={i.prepaid} />],
          ["Payable", (i) => <Money of={i.payable} strong />],
          ["", (i) => <Button onClick={() => open(i.id)}>Lines<span className="sr-only"> of invoice {i.number ?? i.id}</span></Button>],
        ]} />
      )}</ShowList>
    </Card>
  );
}

function InvoiceDialog({ id, close }: { id: string; close: () => void }) {
  const invoice = useQuery({ queryKey: ["invoice", id], queryFn: () => take(api.GET("/v1/billing/invoices/{invoice_id}", { params: { path: { invoice_id: id } } })) });
  return (
    <Dialog title={invoice.data?.number ? `Invoice ${invoice.data.number}` : "Draft invoice"} side close={close}>
      <Show query={invoice} what="the invoice">{(i) => (
        <>
          <Facts rows={[
            ["Delivered", <><Instant at={i.period.start} /> – <Instant at={i.period.end} /></>],
            ["Lease", i.lease_id ? <Link key="l" className="text-accent underline" to={paths.lease(i.lease_id)}>{i.lease_id}</Link> : "–"],
            ["Subtotal", <Money key="s" of={i.subtotal} />], ["Tax", <Money key="t" of={i.tax} />], ["Total", <Money key="o" of={i.total} strong />],
            ["Prepaid", <Money key="p" of={i.prepaid} />], ["Payable", <Money key="y" of={i.payable} strong />],
          ]} />
          <Lines lines={i.lines} />
          {i.digest && <p className="text-xs break-all text-soft">Digest {i.digest}</p>}
        </>
      )}</Show>
    </Dialog>
  );
}

function Lines({ lines }: { lines: Schemas["ChargeLine"][] }) {
  return (
    <Table caption="Charge lines" rows={lines} id={(l) => l.id} columns={[
      ["Line", (l) => <>{l.description} {l.kind !== "usage" && <Badge>{l.kind}</Badge>}</>],
      ["From", (l) => <Instant at={l.start} />],
      ["To", (l) => <Instant at={l.end} />],
      ["Amount", (l) => <Money of={l.amount} />],
      ["Tax", (l) => <Money of={l.tax} />],
    ]} />
  );
}

function Usage() {
  const usage = useList(["usage"], (cursor) => takePart(api.GET("/v1/billing/usage", { params: { query: from(cursor) } })));
  return (
    <Card title="Usage">
      <ShowList query={usage} what="usage">{(items) => items.length === 0
        ? <Empty title="Nothing was charged yet">Lines appear while a lease runs. <Link className="text-accent underline" to={paths.market}>Find capacity</Link></Empty>
        : <Lines lines={items} />}</ShowList>
    </Card>
  );
}

const tones: Record<Schemas["TopUp"]["state"], Tone> = { succeeded: "good", failed: "bad", requires_action: "warn", pending: "calm" };

function Payments() {
  const topUps = useList(["top-ups"], (cursor) => takePart(api.GET("/v1/billing/top-ups", { params: { query: { limit: 20, ...from(cursor) } } })), 10_000);
  return (
    <Card title="Payments">
      <ShowList query={topUps} what="payments">{(items) => items.length === 0 ? <Empty title="Nothing was paid in yet">Top up above; what you book is held from your balance.</Empty> : (
        <Table caption="Payments, newest first" rows={items} id={(t) => t.id} columns={[
          ["When", (t) => <Instant at={t.created_at} />],
          ["Amount", (t) => <Money of={t.amount} />],
          ["State", (t) => <><Badge tone={tones[t.state]}>{t.state.replace("_", " ")}</Badge> {t.failure}</>],
          ["", (t) => t.state === "requires_action" && t.action_url ? <a className="text-accent underline" href={t.action_url}>Confirm</a> : null],
        ]} />
      )}</ShowList>
    </Card>
  );
}
