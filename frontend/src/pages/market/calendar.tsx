import { useQuery } from "@tanstack/react-query";
import { useRef, useState, type KeyboardEvent } from "react";
import { api, take, type Schemas } from "../../api/client";
import { Show } from "../../show";
import { Empty } from "../../ui";
import { firstHour, lastHour, pick, step, week, type Cell, type Day, type Span } from "./hours";

interface CalendarProps { instanceType: string; span: Span | null; choose: (span: Span) => void }

/** Calendar is a heat map for each site: a row a day, a cell an hour. Choosing cells fills in the window. */
export function Calendar({ instanceType, span, choose }: CalendarProps) {
  const [from] = useState(() => firstHour(new Date()));
  const calendar = useQuery({
    queryKey: ["availability", instanceType, from.toISOString()],
    queryFn: () => take(api.GET("/v1/availability", {
      params: { query: { instance_type: instanceType, from: from.toISOString(), to: lastHour(from).toISOString(), step_seconds: 3600 } },
    })),
    refetchInterval: 30_000,
  });
  return (
    <Show query={calendar} what="the calendar">
      {({ sites }) => sites.length === 0
        ? <Empty title="No site has this type now">Nodes may be in maintenance; look again later.</Empty>
        : (
          <>
            <p className="mb-3 text-sm text-soft">How many instances are free in each hour. Choose the hour to start in, then the last one; arrow keys move.</p>
            {sites.map((s) => <Site key={s.site} site={s} days={week(from)} span={span} choose={choose} />)}
          </>
        )}
    </Show>
  );
}

interface SiteProps { site: Schemas["CalendarSite"]; days: Day[]; span: Span | null; choose: (span: Span) => void }

function Site({ site, days, span, choose }: SiteProps) {
  const cells = days.map((d) => d.cells);
  const [focus, setFocus] = useState<[number, number]>(() => [0, Math.max(0, cells[0]?.findIndex(Boolean) ?? 0)]);
  const grid = useRef<HTMLTableElement>(null);
  const move = (event: KeyboardEvent) => {
    const next = step(cells, focus, event.key);
    if (next === focus || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    setFocus(next);
    grid.current?.querySelector<HTMLElement>(`[data-at="${next.join()}"]`)?.focus();
  };
  return (
    <div className="relative mb-3 overflow-x-auto p-0.5">
      <table ref={grid} role="grid" aria-label={`Free at ${site.site} by the hour`} onKeyDown={move} className="w-full min-w-[44rem] table-fixed border-separate border-spacing-0.5 text-xs">
        <caption className="pb-1 text-left text-sm font-medium">{site.site}: {site.total} in all</caption>
        <thead>
          <tr>
            <th className="w-20"><span className="sr-only">Day</span></th>
            {Array.from({ length: 24 }, (_, h) => <th key={h} scope="col" className="font-normal text-soft">{String(h).padStart(2, "0")}</th>)}
          </tr>
        </thead>
        <tbody>
          {days.map((day, row) => (
            <tr key={row}>
              <th scope="row" className="sticky left-0 bg-panel pr-2 text-right font-normal whitespace-nowrap text-soft">{day.label.toLocaleDateString(undefined, { weekday: "short", day: "numeric", month: "short" })}</th>
              {day.cells.map((cell, column) => (
                <td key={column} className="p-0">
                  {cell && <Hour cell={cell} free={site.free[cell.index] ?? 0} total={site.total} at={[row, column]} focused={focus[0] === row && focus[1] === column}
                    chosen={span !== null && cell.start >= span.start && cell.start < span.end} choose={() => { setFocus([row, column]); choose(pick(span, cell.start)); }} />}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface HourProps { cell: Cell; free: number; total: number; at: [number, number]; focused: boolean; chosen: boolean; choose: () => void }

function Hour({ cell, free, total, at, focused, chosen, choose }: HourProps) {
  const label = `${cell.start.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}: ${free} of ${total} free`;
  return (
    <button type="button" data-at={at.join()} tabIndex={focused ? 0 : -1} title={`${label} (${cell.start.toISOString().slice(0, 16).replace("T", " ")} UTC)`} aria-label={label} aria-pressed={chosen} onClick={choose}
      className={`block h-7 w-full rounded-sm text-[0.65rem] ${chosen ? "bg-accent font-bold text-on-accent" : look(free, total)}`}>{free}</button>
  );
}

/** look never stands alone: the number is in the cell. */
function look(free: number, total: number): string {
  if (free === 0) return "bg-bad-soft text-bad";
  if (free < total / 2) return "bg-warn-soft text-warn";
  return "bg-good-soft text-good";
}
