import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, take } from "../api/client";
import { Show } from "../show";
import { Empty } from "../ui";

const hours = 24, days = 7;

/** Calendar is a heat map: a row a site and day, a cell an hour. Choosing a cell fills in the window. */
export function Calendar({ instanceType, pick }: { instanceType: string; pick: (start: string, end: string) => void }) {
  const [from] = useState(() => new Date(Math.floor(Date.now() / 3_600_000) * 3_600_000));
  const to = new Date(from.getTime() + days * hours * 3_600_000);
  const calendar = useQuery({
    queryKey: ["availability", instanceType, from.toISOString()],
    queryFn: () => take(api.GET("/v1/availability", {
      params: { query: { instance_type: instanceType, from: from.toISOString(), to: to.toISOString(), step_seconds: 3600 } },
    })),
    refetchInterval: 30_000,
  });
  return (
    <Show query={calendar} what="the calendar">
      {({ sites }) => sites.length === 0
        ? <Empty title="No site has this type now">Nodes may be in maintenance; look again later.</Empty>
        : <>{sites.map((s) => <SiteRows key={s.site} site={s.site} total={s.total} free={s.free} from={from} pick={pick} />)}<Legend /></>}
    </Show>
  );
}

function SiteRows({ site, total, free, from, pick }: { site: string; total: number; free: number[]; from: Date; pick: (start: string, end: string) => void }) {
  return (
    <div className="relative mb-3 overflow-x-auto" role="region" aria-label={`Calendar of ${site}`} tabIndex={0}>
      <table className="w-full min-w-[40rem] table-fixed border-separate border-spacing-0.5 text-xs">
        <caption className="pb-1 text-left text-sm text-soft">{site}: free of {total} instances, by the hour</caption>
        <tbody>
          {Array.from({ length: days }, (_, day) => (
            <tr key={day}>
              <th scope="row" className="w-20 pr-2 text-right font-normal whitespace-nowrap text-soft">
                {new Date(from.getTime() + day * hours * 3_600_000).toLocaleDateString(undefined, { weekday: "short", day: "numeric", month: "short" })}
              </th>
              {Array.from({ length: hours }, (_, hour) => {
                const n = free[day * hours + hour] ?? 0;
                const start = new Date(from.getTime() + (day * hours + hour) * 3_600_000);
                const label = `${start.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}: ${n} of ${total} free`;
                return (
                  <td key={hour} className="p-0">
                    <button type="button" title={label} aria-label={label} onClick={() => pick(inputValue(start), inputValue(new Date(start.getTime() + 3_600_000)))}
                      className={`block h-6 w-full rounded-sm text-[0.65rem] ${look(n, total)}`}>{n}</button>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** look never relies on colour alone: the number is in the cell. */
function look(free: number, total: number): string {
  if (free === 0) return "bg-bad-soft text-bad";
  if (free < total / 2) return "bg-warn-soft text-warn";
  return "bg-good-soft text-good";
}

/** inputValue is an instant as a datetime-local field wants it: local time without a zone. */
function inputValue(at: Date): string {
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function Legend() {
  return <p className="text-xs text-soft">The number is how many instances are free in that hour. Choose an hour to start there.</p>;
}
