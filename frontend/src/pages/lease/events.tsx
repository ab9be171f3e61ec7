import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api, take, type Schemas } from "../../api/client";
import { Show } from "../../show";
import { Card, Instant, Table } from "../../ui";

type Event = Schemas["LeaseEvent"];
const most = 200;

/** Events is the lease's log, newest first. Only what is new is read, page by page. */
export function Events({ lease: l }: { lease: Schemas["Lease"] }) {
  const queries = useQueryClient();
  const events = useQuery({
    queryKey: ["events", l.id, l.last_event],
    queryFn: () => readOn(l.id, queries.getQueriesData<Event[]>({ queryKey: ["events", l.id] }).flatMap(([, e]) => e ? [e] : []).sort((a, b) => b.length - a.length)[0] ?? []),
    placeholderData: (previous: Event[] | undefined) => previous,
  });
  return (
    <Card title="Events">
      <Show query={events} what="events">{(items) => (
        <Table caption="The lease's log" rows={items.toReversed()} id={(e) => e.seq} columns={[
          ["#", (e) => e.seq],
          ["When", (e) => <Instant at={e.at} />],
          ["What", (e) => <span className="font-medium">{e.type}</span>],
          ["Facts", (e) => <Data of={e.data} />],
          ["Who", (e) => <span className="text-xs break-all text-soft">{e.actor}</span>],
        ]} />
      )}</Show>
    </Card>
  );
}

async function readOn(lease: string, known: Event[]): Promise<Event[]> {
  const all = [...known];
  for (;;) {
    const { items } = (await take(api.GET("/v1/leases/{lease_id}/events", { params: { path: { lease_id: lease }, query: { limit: most, after: all.at(-1)?.seq ?? 0 } } }))) as Schemas["LeaseEventList"];
    all.push(...items);
    if (items.length < most) return all;
  }
}

function Data({ of }: { of: Event["data"] }) {
  const facts = Object.entries(of).filter(([, value]) => value !== "" && value !== null);
  return <span className="text-xs break-all text-soft">{facts.map(([name, value]) => `${name.replaceAll("_", " ")}: ${typeof value === "object" ? JSON.stringify(value) : String(value)}`).join(", ")}</span>;
}
