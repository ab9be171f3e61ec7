import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { api, once, take, type Schemas } from "../api/client";
import { minorFrom, money } from "../format";
import { paths } from "../routes";
import { Refusal, Show } from "../show";
import { Alert, Badge, Button, Card, Empty, Field, Input, Instant, Page, Select, Table } from "../ui";

export function Billing() {
  const balance = useQuery({ queryKey: ["balance"], queryFn: () => take(api.GET("/v1/billing/balance")), refetchInterval: 10_000 });
  const invoices = useQuery({ queryKey: ["invoices"], queryFn: () => take(api.GET("/v1/billing/invoices")) });
  const usage = useQuery({ queryKey: ["usage"], queryFn: () => take(api.GET("/v1/billing/usage", { params: { query: { limit: 50 } } })) });
  return (
    <Page title="Billing">
      <Show query={balance} what="your balance">
        {(b) => (
          <div className="grid grid-cols-[minmax(0,1fr)] gap-4 lg:grid-cols-[2fr_1fr]">
            <Card title="Balance">
              <div className="grid gap-4 sm:grid-cols-3">
                <Stat name="Available" value={money(b.available)} strong />
                <Stat name="Cash" value={money(b.cash)} />
                <Stat name="Held for leases" value={money(b.held)} />
              </div>
              {b.credit_limit.amount > 0 && <p className="mt-3 text-sm text-soft">Credit limit {money(b.credit_limit)}</p>}
            </Card>
            <Card title="Top up"><TopUp balance={b} /></Card>
          </div>
        )}
      </Show>
      <Card title="Invoices">
        <Show query={invoices} what="invoices">{({ items }) => items.length === 0 ? <Empty title="No invoices yet">A draft appears when a lease has closed.</Empty> : (
          <Table caption="Invoices" head={["Number", "State", "Lease", "Made", "Total", "Prepaid", "Payable"]}>
            {items.map((i) => (
              <tr key={i.id}>
                <td>{i.number ?? <span className="text-soft">draft</span>}</td><td><Badge tone={i.state === "final" ? "good" : "calm"}>{i.state}</Badge></td>
                <td>{i.lease_id ? <Link className="text-accent underline" to={paths.lease(i.lease_id)}>{i.lease_id.slice(-6)}</Link> : "–"}</td>
                <td><Instant at={i.created_at} /></td><td>{money(i.total)}</td><td>{money(i.prepaid)}</td><td className="font-semibold">{money(i.payable)}</td>
              </tr>
            ))}
          </Table>
        )}</Show>
      </Card>
      <Card title="Usage">
        <Show query={usage} what="usage">{({ items }) => items.length === 0 ? <Empty title="Nothing was charged yet" /> : (
          <Table caption="Charge lines, newest first" head={["Line", "From", "To", "Amount", "Tax"]}>
            {items.map((l) => <tr key={l.id}><td>{l.description}</td><td><Instant at={l.start} /></td><td><Instant at={l.end} /></td><td>{money(l.amount)}</td><td>{money(l.tax)}</td></tr>)}
          </Table>
        )}</Show>
      </Card>
    </Page>
  );
}

function Stat({ name, value, strong = false }: { name: string; value: string; strong?: boolean }) {
  return <div><p className="text-sm text-soft">{name}</p><p className={strong ? "text-2xl font-bold" : "text-lg font-semibold"}>{value}</p></div>;
}

function TopUp({ balance }: { balance: Schemas["Balance"] }) {
  const queries = useQueryClient();
  const currency = balance.cash.currency;
  const [amount, setAmount] = useState("100");
  const [method, setMethod] = useState("pm_card_visa");
  const minor = minorFrom(amount, currency);
  const pay = useMutation({
    mutationFn: () => take(api.POST("/v1/billing/top-ups", { params: { header: once() }, body: { amount: { amount: minor ?? 0, currency }, payment_method: method } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["balance"] }),
  });
  return (
    <form className="flex flex-col gap-3" onSubmit={(e) => { e.preventDefault(); pay.mutate(); }}>
      <Field label={`Amount in ${currency}`}><Input inputMode="decimal" value={amount} onChange={(e) => setAmount(e.target.value)} /></Field>
      {balance.gateway === "test" && (
        <Field label="Test card">
          <Select value={method} onChange={(e) => setMethod(e.target.value)}>
            <option value="pm_card_visa">Visa, succeeds</option><option value="pm_card_chargeDeclined">Declined</option>
            <option value="pm_card_threeDSecure2Required">Asks for 3-D Secure</option>
          </Select>
        </Field>
      )}
      <Refusal error={pay.error} />
      {pay.data?.state === "succeeded" && <Alert tone="good" title={`${money(pay.data.amount)} were paid in`} />}
      {pay.data?.state === "failed" && <Alert title={`The card was refused: ${pay.data.failure ?? ""}`} />}
      {pay.data?.state === "requires_action" && pay.data.action_url && <Alert tone="warn" title="Your bank wants to confirm"><a className="underline" href={pay.data.action_url}>Confirm the payment</a></Alert>}
      <Button kind="primary" type="submit" busy={pay.isPending} why={minor ? undefined : "Give an amount first"}>Pay in</Button>
    </form>
  );
}
