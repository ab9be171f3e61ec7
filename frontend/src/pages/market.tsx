import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api, once, take, type Schemas } from "../api/client";
import { bytes, duration, money, rate } from "../format";
import { paths } from "../routes";
import { Refusal, Show } from "../show";
import { Badge, Button, Card, Empty, Field, Input, Instant, Page, Select, Table } from "../ui";
import { Calendar } from "./calendar";

type InstanceType = Schemas["InstanceType"];

export function Market() {
  const types = useQuery({ queryKey: ["instance-types"], queryFn: () => take(api.GET("/v1/instance-types")), refetchInterval: 15_000 });
  const [chosen, setChosen] = useState<string | null>(null);
  return (
    <Page title="Market" intro="What is for rent, when, and for how much. A quote is firm; nothing is held before you book.">
      <Show query={types} what="instance types">
        {({ items }) => {
          const offered = items.filter((t) => t.offers.length > 0);
          if (offered.length === 0) return <Empty title="Nothing is for rent yet">An operator has to add a site and prices first.</Empty>;
          const selected = offered.find((t) => t.name === chosen) ?? offered.find((t) => t.infiniband) ?? offered[0];
          return (
            <>
              <Card title="Instance types"><Types types={offered} selected={selected?.name ?? ""} select={setChosen} /></Card>
              {selected && <Wish key={selected.name} type={selected} />}
            </>
          );
        }}
      </Show>
    </Page>
  );
}

function Types({ types, selected, select }: { types: InstanceType[]; selected: string; select: (name: string) => void }) {
  return (
    <Table caption="Instance types" head={["Type", "GPU", "Memory", "Fabric", "Price", "Free now", ""]}>
      {types.flatMap((t) => t.offers.map((offer) => (
        <tr key={t.name + offer.site} className={t.name === selected ? "bg-calm-soft" : ""}>
          <td><span className="font-semibold">{t.title}</span><br /><code className="text-xs text-soft">{t.name}</code></td>
          <td>{t.gpu_count > 0 ? `${t.gpu_count} × ${t.gpu_model}` : `slice ${t.mig_profile} of ${t.gpu_model}`}</td>
          <td className="whitespace-nowrap">{bytes(t.gpu_memory_bytes)}</td>
          <td>{t.infiniband ? <Badge tone="good">InfiniBand</Badge> : <span className="text-soft">–</span>}</td>
          <td className="whitespace-nowrap">{rate(offer.rate)}</td>
          <td className="whitespace-nowrap">{offer.free_now} of {offer.total_instances}<br /><span className="text-xs text-soft">at {offer.site}</span></td>
          <td><Button onClick={() => select(t.name)} aria-pressed={t.name === selected}>{t.name === selected ? "Selected" : "Select"}<span className="sr-only"> {t.name}</span></Button></td>
        </tr>
      )))}
    </Table>
  );
}

function Wish({ type }: { type: InstanceType }) {
  const [when, setWhen] = useState<"now" | "window">("now");
  const [instances, setInstances] = useState(1);
  const [topology, setTopology] = useState<Schemas["Topology"]>("any");
  const [hours, setHours] = useState("1");
  const [start, setStart] = useState("");
  const [end, setEnd] = useState("");
  const navigate = useNavigate();
  const seconds = Math.round(Number(hours) * 3600);
  const window = start && end ? { start: new Date(start).toISOString(), end: new Date(end).toISOString() } : null;
  const wish = { instance_type: type.name, instances, topology, ...(when === "now" ? { duration_seconds: seconds } : window ? { window } : {}) };
  const why = when === "window" && !window ? "Choose a start and an end first" : when === "now" && !(seconds > 0) ? "Say for how long first" : undefined;
  const search = useMutation({ mutationFn: () => take(api.POST("/v1/availability/search", { body: wish })) });
  const quote = useMutation({
    mutationFn: (site: string) => take(api.POST("/v1/quotes", { params: { header: once() }, body: { ...wish, site } })),
    onSuccess: (q) => navigate(paths.quote(q.id)),
  });
  return (
    <>
      <Card title={`Availability of ${type.title}`}>
        <Calendar instanceType={type.name} pick={(from, to) => { setWhen("window"); setStart(from); setEnd(to); }} />
      </Card>
      <Card title="What do you need?">
        <form className="grid grid-cols-[minmax(0,1fr)] items-end gap-4 sm:grid-cols-2 lg:grid-cols-4" onSubmit={(e) => { e.preventDefault(); search.mutate(); }}>
          <Field label="Instances"><Input type="number" min={1} max={10000} required value={instances} onChange={(e) => setInstances(Math.max(1, e.target.valueAsNumber || 1))} /></Field>
          <Field label="When">
            <Select value={when} onChange={(e) => setWhen(e.target.value === "now" ? "now" : "window")}>
              <option value="now">As soon as possible</option><option value="window">A window of its own</option>
            </Select>
          </Field>
          {when === "now"
            ? <Field label="Hours"><Input type="number" min={0.01} step="any" required value={hours} onChange={(e) => setHours(e.target.value)} /></Field>
            : <>
                <Field label="Start" hint="your time zone"><Input type="datetime-local" required value={start} onChange={(e) => setStart(e.target.value)} /></Field>
                <Field label="End" hint="your time zone"><Input type="datetime-local" required value={end} onChange={(e) => setEnd(e.target.value)} /></Field>
              </>}
          <Field label="Topology">
            <Select value={topology} onChange={(e) => setTopology(e.target.value as Schemas["Topology"])}>
              <option value="any">Any</option><option value="same_leaf">Same leaf switch</option><option value="same_pod">Same pod</option>
            </Select>
          </Field>
          <Button kind="primary" type="submit" busy={search.isPending} why={why}>Find options</Button>
        </form>
        <div className="mt-4 flex flex-col gap-3" aria-live="polite">
          <Refusal error={search.error ?? quote.error} />
          {search.data && <Options options={search.data.items} busy={quote.isPending} choose={(site) => quote.mutate(site)} />}
        </div>
      </Card>
    </>
  );
}

function Options({ options, busy, choose }: { options: Schemas["Option"][]; busy: boolean; choose: (site: string) => void }) {
  if (options.length === 0) return <Empty title="Nothing that fits is free then">Try another time, fewer instances, or any topology.</Empty>;
  return (
    <Table caption="Options, best first" head={["Site", "Window", "Nodes", "Leaf switches", "Price", "At worst, with tax", ""]}>
      {options.map((o) => (
        <tr key={o.site + o.window.start}>
          <td>{o.site}</td>
          <td><Instant at={o.window.start} /><br /><span className="text-soft">for {duration((Date.parse(o.window.end) - Date.parse(o.window.start)) / 1000)}</span></td>
          <td>{o.nodes}</td>
          <td>{o.leaves_spanned > 0 ? `${o.leaves_spanned} per rail` : "–"}</td>
          <td className="whitespace-nowrap">{rate(o.rate)}</td>
          <td className="font-semibold whitespace-nowrap">{money(o.total)}</td>
          <td><Button kind="primary" busy={busy} onClick={() => choose(o.site)}>Get quote</Button></td>
        </tr>
      ))}
    </Table>
  );
}
