import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router";
import { api, once, take, type Schemas } from "../../api/client";
import { between, duration, rate } from "../../format";
import { paths } from "../../paths";
import { Refusal } from "../../show";
import { Button, Card, Duration, Empty, Field, Input, Instant, Money, Select, Table } from "../../ui";
import { Calendar } from "./calendar";
import { inputValue, type Span } from "./hours";

type When = "now" | "window" | "flexible";
type Topology = Schemas["Topology"];
type Policy = Schemas["FailurePolicy"];

interface Form { instances: number; when: When; hours: string; start: string; end: string; topology: Topology; policy: Policy }

const blank: Form = { instances: 1, when: "now", hours: "1", start: "", end: "", topology: "any", policy: "replace" };

/** Wish is what somebody wants: the calendar and the form that fill each other in, and what fits. */
export function Wish({ type }: { type: Schemas["InstanceType"] }) {
  const [form, setForm] = useState(blank);
  const change = (part: Partial<Form>) => setForm((f) => ({ ...f, ...part }));
  const navigate = useNavigate();
  const search = useMutation({ mutationFn: (wish: Form) => take(api.POST("/v1/availability/search", { body: { ...what(type, wish), ...searched(wish) } })) });
  // The quote is for what was searched, though the form may say something else by now.
  const quote = useMutation({
    mutationFn: ({ wish, option }: { wish: Form; option: Schemas["Option"] }) => take(api.POST("/v1/quotes", {
      params: { header: once() },
      body: { ...what(type, wish), site: option.site, failure_policy: wish.policy, ...(wish.when === "now" ? { duration_seconds: seconds(wish) } : { window: option.window }) },
    })),
    onSuccess: (q) => navigate(paths.quote(q.id)),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    quote.reset();
    search.mutate(form);
  };
  const wish = search.variables;
  return (
    <>
      <Card title={`Availability of ${type.title}`}>
        <Calendar instanceType={type.name} span={spanOf(form)}
          choose={({ start, end }) => change({ when: form.when === "now" ? "window" : form.when, start: inputValue(start), end: inputValue(end) })} />
      </Card>
      <Card title="What do you need?">
        <form className="flex flex-col gap-4" onSubmit={submit}>
          <Fields type={type} form={form} change={change} />
          <div><Button kind="primary" type="submit" busy={search.isPending} why={missing(form)}>Find options</Button></div>
        </form>
        <div className="mt-4 flex flex-col gap-3" aria-live="polite">
          <Refusal error={search.error ?? quote.error} />
          {search.data && wish && <Options options={search.data.items} busy={quote.isPending} choose={(option) => quote.mutate({ wish, option })} />}
        </div>
      </Card>
    </>
  );
}

function Fields({ type, form, change }: { type: Schemas["InstanceType"]; form: Form; change: (part: Partial<Form>) => void }) {
  return (
    <div className="grid grid-cols-[minmax(0,1fr)] items-start gap-4 sm:grid-cols-2 lg:grid-cols-3">
      <Field label="Instances"><Input type="number" min={1} max={10000} required value={form.instances} onChange={(e) => change({ instances: Math.max(1, e.target.valueAsNumber || 1) })} /></Field>
      <Field label="When">
        <Select value={form.when} onChange={(e) => change({ when: e.target.value as When })}>
          <option value="now">As soon as possible</option><option value="window">From start to end, exactly</option><option value="flexible">Any time between start and end</option>
        </Select>
      </Field>
      {form.when !== "window" && <Field label="Hours" hint={limits(type)}><Input type="number" min={0.01} step="any" required value={form.hours} onChange={(e) => change({ hours: e.target.value })} /></Field>}
      {form.when !== "now" && (
        <>
          <Field label="Start" hint="In your time zone"><Input type="datetime-local" required value={form.start} onChange={(e) => change({ start: e.target.value })} /></Field>
          <Field label="End" hint="In your time zone"><Input type="datetime-local" required value={form.end} onChange={(e) => change({ end: e.target.value })} /></Field>
        </>
      )}
      {type.infiniband && (
        <Field label="Topology" hint="How close the nodes are on the fabric">
          <Select value={form.topology} onChange={(e) => change({ topology: e.target.value as Topology })}>
            <option value="any">Any</option><option value="same_leaf">Same leaf switch</option><option value="same_pod">Same pod</option>
          </Select>
        </Field>
      )}
      <Field label="If a node fails" hint="Its outage is never billed. Replacing a node of a running lease is not in this release yet.">
        <Select value={form.policy} onChange={(e) => change({ policy: e.target.value as Policy })}>
          <option value="replace">Replace it at once</option><option value="ask">Ask me</option><option value="keep">Keep the rest</option>
        </Select>
      </Field>
    </div>
  );
}

function Options({ options, busy, choose }: { options: Schemas["Option"][]; busy: boolean; choose: (option: Schemas["Option"]) => void }) {
  if (options.length === 0) return <Empty title="Nothing that fits is free then">Try another time, fewer instances, or any topology. The calendar shows when there is room.</Empty>;
  return (
    <Table caption="Options, best first" rows={options} id={(o) => o.site + (o.fabric ?? "") + o.window.start} columns={[
      ["Site", (o) => o.site],
      ["Window", (o) => <><Instant at={o.window.start} /><br /><span className="text-soft">for <Duration seconds={between(o.window.start, o.window.end)} /></span></>],
      ["Nodes", (o) => o.nodes],
      ["Leaf switches", (o) => o.leaves_spanned > 0 ? `${o.leaves_spanned} per rail` : "no InfiniBand"],
      ["Price", (o) => rate(o.rate)],
      ["At worst, with tax", (o) => <Money of={o.total} strong />],
      ["", (o) => <Button kind="primary" busy={busy} onClick={() => choose(o)}>Get quote</Button>],
    ]} />
  );
}

function seconds(form: Form): number {
  return Math.round(Number(form.hours) * 3600);
}

function spanOf({ when, start, end }: Form): Span | null {
  return when !== "now" && start && end ? { start: new Date(start), end: new Date(end) } : null;
}

function what(type: Schemas["InstanceType"], { instances, topology }: Form) {
  return { instance_type: type.name, instances, topology };
}

function searched(form: Form): Partial<Schemas["AvailabilitySearch"]> {
  const span = spanOf(form);
  if (!span) return { duration_seconds: seconds(form) };
  const start = span.start.toISOString(), end = span.end.toISOString();
  return form.when === "window" ? { window: { start, end } } : { earliest: start, latest_end: end, duration_seconds: seconds(form) };
}

/** missing is why there is nothing to look for yet. */
function missing(form: Form): string | undefined {
  const span = spanOf(form);
  if (form.when !== "window" && !(seconds(form) > 0)) return "Say for how many hours first.";
  if (form.when !== "now" && !span) return "Choose a start and an end first, in the calendar or below it.";
  if (span && span.end <= span.start) return "The end has to be after the start.";
  return undefined;
}

/** limits are the widest of all sites: the server knows each one's own. */
function limits(type: Schemas["InstanceType"]): string {
  const least = Math.min(...type.offers.map((o) => o.min_duration_seconds)), most = Math.max(...type.offers.map((o) => o.max_duration_seconds));
  return `From ${duration(least)} to ${duration(most)}`;
}
