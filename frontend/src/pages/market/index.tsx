import { useQuery } from "@tanstack/react-query";
import { useSearchParams } from "react-router";
import { api, take, type Schemas } from "../../api/client";
import { bytes, rate } from "../../format";
import { Show } from "../../show";
import { Badge, Button, Card, Empty, Page, Table } from "../../ui";
import { Wish } from "./wish";

type Row = { type: Schemas["InstanceType"]; offer: Schemas["Offer"] };

export function Market() {
  const types = useQuery({ queryKey: ["instance-types"], queryFn: () => take(api.GET("/v1/instance-types")), refetchInterval: 15_000 });
  const [search, setSearch] = useSearchParams();
  const select = (name: string) => setSearch({ type: name }, { replace: true, preventScrollReset: true });
  return (
    <Page title="Market" intro="What is for rent, when, and for how much. A quote is firm in price; nothing is held before you book.">
      <Show query={types} what="instance types">
        {({ items }) => {
          // What no node can carry now would only be in the way; it comes back with the first node that can.
          const rows = items.flatMap((type) => type.offers.filter((o) => o.total_instances > 0).map((offer) => ({ type, offer })));
          const chosen = rows.find((r) => r.type.name === search.get("type")) ?? rows.find((r) => r.type.infiniband) ?? rows[0];
          if (!chosen) return <Empty title="Nothing is for rent yet">An operator has to add a site, nodes and prices first.</Empty>;
          return (
            <>
              <Card title="Instance types"><Types rows={rows} selected={chosen.type.name} select={select} /></Card>
              <Wish key={chosen.type.name} type={chosen.type} />
            </>
          );
        }}
      </Show>
    </Page>
  );
}

function Types({ rows, selected, select }: { rows: Row[]; selected: string; select: (name: string) => void }) {
  return (
    <Table caption="Instance types" rows={rows} id={(r) => r.type.name + r.offer.site} marked={(r) => r.type.name === selected} columns={[
      ["Type", ({ type }) => <><span className="font-semibold">{type.title}</span><br /><code className="text-xs text-soft">{type.name}</code></>],
      ["GPU", ({ type }) => type.gpu_count > 0 ? `${type.gpu_count} × ${type.gpu_model}` : `slice ${type.mig_profile} of ${type.gpu_model}`],
      ["Memory", ({ type }) => bytes(type.gpu_memory_bytes)],
      ["Fabric", ({ type }) => type.infiniband ? <Badge tone="good">InfiniBand</Badge> : <span className="text-soft">none</span>],
      ["Price", ({ offer }) => rate(offer.rate)],
      ["Free now", ({ offer }) => <>{offer.free_now} of {offer.total_instances}<br /><span className="text-xs text-soft">at {offer.site}</span></>],
      ["", ({ type }) => <Button onClick={() => select(type.name)} aria-pressed={type.name === selected}>{type.name === selected ? "Selected" : "Select"}<span className="sr-only"> {type.name}</span></Button>],
    ]} />
  );
}
