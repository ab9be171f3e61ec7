import { AlertTriangle, CircleCheck, Inbox, Info } from "lucide-react";
import type { ReactNode } from "react";
import { duration, local, money, type Amount } from "../format";

// The design system: it knows no router, no query and no form library.
export * from "./controls";
export * from "./dialog";
export * from "./table";

export function Card({ title, action, children }: { title?: string; action?: ReactNode; children: ReactNode }) {
  return (
    <section className="min-w-0 rounded-lg border border-line bg-panel p-4 sm:p-5">
      {(title || action) && (
        <header className="mb-3 flex flex-wrap items-center justify-between gap-2">
          {title && <h2 className="text-base font-semibold">{title}</h2>}
          {action}
        </header>
      )}
      {children}
    </section>
  );
}

export function Page({ title, intro, action, children }: { title: string; intro?: ReactNode; action?: ReactNode; children: ReactNode }) {
  return (
    <main id="main" tabIndex={-1} className="mx-auto flex w-full max-w-6xl min-w-0 flex-col gap-4 px-4 py-6 outline-none">
      <title>{`${title} · Leasehold`}</title>
      <header className="flex flex-wrap items-end justify-between gap-3">
        <div className="min-w-0">
          <h1 className="text-2xl font-bold tracking-tight break-words">{title}</h1>
          {intro && <p className="mt-1 text-sm text-soft">{intro}</p>}
        </div>
        {action}
      </header>
      {children}
    </main>
  );
}

export type Tone = "good" | "warn" | "bad" | "calm";

export function Badge({ tone = "calm", children }: { tone?: Tone; children: ReactNode }) {
  const look = { good: "bg-good-soft text-good", warn: "bg-warn-soft text-warn", bad: "bg-bad-soft text-bad", calm: "bg-calm-soft text-ink" }[tone];
  return <span className={`inline-block rounded-full px-2.5 py-0.5 text-xs font-semibold ${look}`}>{children}</span>;
}

export function Progress({ percent, label }: { percent: number; label: string }) {
  return (
    <div role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent} className="h-2 w-full overflow-hidden rounded-full bg-line">
      <div className="h-full bg-accent transition-[width] motion-reduce:transition-none" style={{ width: `${percent}%` }} />
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="flex flex-col items-center gap-2 py-8 text-center text-soft">
      <Inbox className="size-7" aria-hidden />
      <p className="font-semibold text-ink">{title}</p>
      {children && <div className="max-w-prose text-sm">{children}</div>}
    </div>
  );
}

export function Alert({ tone = "bad", title, children }: { tone?: Tone; title: string; children?: ReactNode }) {
  const look = { good: "border-good bg-good-soft", warn: "border-warn bg-warn-soft", bad: "border-bad bg-bad-soft", calm: "border-line bg-calm-soft" }[tone];
  const Sign = { good: CircleCheck, warn: AlertTriangle, bad: AlertTriangle, calm: Info }[tone];
  return (
    <div role={tone === "bad" ? "alert" : "status"} className={`rounded-md border px-4 py-3 text-sm ${look}`}>
      <p className="flex items-start gap-2 font-semibold"><Sign className="mt-0.5 size-4 shrink-0" aria-hidden />{title}</p>
      {children && <div className="mt-1 flex flex-col items-start gap-2">{children}</div>}
    </div>
  );
}

/** Skeleton holds the place of what is loading, and says so to those who do not see it. */
export function Skeleton({ what }: { what: string }) {
  return (
    <div role="status" className="flex flex-col gap-3 py-2">
      <span className="sr-only">Loading {what}…</span>
      {["w-2/5", "w-full", "w-4/5"].map((w) => <span key={w} aria-hidden className={`h-4 animate-pulse rounded bg-line motion-reduce:animate-none ${w}`} />)}
    </div>
  );
}

export function Facts({ rows }: { rows: (readonly [string, ReactNode])[] }) {
  return (
    <dl className="grid grid-cols-[minmax(6rem,auto)_1fr] gap-x-4 gap-y-2 text-sm">
      {rows.map(([name, value]) => (
        <div key={name} className="contents"><dt className="text-soft">{name}</dt><dd className="min-w-0 break-words">{value}</dd></div>
      ))}
    </dl>
  );
}

/** Instant is in the reader's zone, with UTC on hover. */
export function Instant({ at }: { at: string }) {
  return <time dateTime={at} title={new Date(at).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC")}>{local(at)}</time>;
}

export function Duration({ seconds }: { seconds: number }) {
  return <span className="whitespace-nowrap">{duration(seconds)}</span>;
}

export function Money({ of, strong = false }: { of: Amount; strong?: boolean }) {
  return <span className={`whitespace-nowrap tabular-nums ${strong ? "font-semibold" : ""}`}>{money(of)}</span>;
}
