import { AlertTriangle, Inbox, LoaderCircle } from "lucide-react";
import type { ButtonHTMLAttributes, InputHTMLAttributes, ReactNode, SelectHTMLAttributes } from "react";

// The design system: it knows no router, no query and no form library.

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { kind?: "primary" | "plain" | "danger"; busy?: boolean; why?: string | undefined };

/** Button says why when it is disabled. */
export function Button({ kind = "plain", busy = false, why, disabled, children, className = "", ...rest }: ButtonProps) {
  const look = {
    primary: "bg-accent text-on-accent border-transparent",
    plain: "bg-panel text-ink border-line hover:border-accent",
    danger: "bg-panel text-bad border-bad",
  }[kind];
  return (
    <button type="button" {...rest} disabled={disabled || busy || Boolean(why)} title={why ?? rest.title}
      className={`inline-flex min-h-10 items-center justify-center gap-2 rounded-md border px-4 py-1.5 text-sm font-semibold disabled:cursor-not-allowed disabled:opacity-60 ${look} ${className}`}>
      {busy && <LoaderCircle className="size-4 animate-spin" aria-hidden />}
      {children}
    </button>
  );
}

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
    <main id="main" className="mx-auto flex w-full max-w-6xl min-w-0 flex-col gap-4 px-4 py-6">
      <header className="flex flex-wrap items-end justify-between gap-3">
        <div>
          <h1 className="text-2xl font-bold tracking-tight">{title}</h1>
          {intro && <p className="mt-1 text-sm text-soft">{intro}</p>}
        </div>
        {action}
      </header>
      {children}
    </main>
  );
}

type Tone = "good" | "warn" | "bad" | "calm";

export function Badge({ tone = "calm", children }: { tone?: Tone; children: ReactNode }) {
  const look = { good: "bg-good-soft text-good", warn: "bg-warn-soft text-warn", bad: "bg-bad-soft text-bad", calm: "bg-calm-soft text-ink" }[tone];
  return <span className={`inline-block rounded-full px-2.5 py-0.5 text-xs font-semibold ${look}`}>{children}</span>;
}

export function Progress({ percent, label }: { percent: number; label: string }) {
  return (
    <div role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent} className="h-2 w-full overflow-hidden rounded-full bg-line">
      <div className="h-full bg-accent transition-[width]" style={{ width: `${percent}%` }} />
    </div>
  );
}

/** Table scrolls sideways on narrow screens, by keyboard too. */
export function Table({ caption, head, children }: { caption: string; head: ReactNode[]; children: ReactNode }) {
  return (
    <div className="relative overflow-x-auto" tabIndex={0} role="region" aria-label={caption}>
      <table className="w-full border-collapse text-sm">
        <caption className="sr-only">{caption}</caption>
        <thead>
          <tr className="border-b border-line text-left text-soft">
            {head.map((h, i) => <th key={i} scope="col" className="px-2 py-2 font-medium whitespace-nowrap">{h}</th>)}
          </tr>
        </thead>
        <tbody className="[&>tr]:border-b [&>tr]:border-line [&>tr:last-child]:border-0 [&_td]:px-2 [&_td]:py-2 [&_td]:align-top">{children}</tbody>
      </table>
    </div>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: ReactNode }) {
  return (
    <label className="flex min-w-0 flex-col gap-1 text-sm font-medium">
      {label}
      {children}
      {hint && <span className="text-xs font-normal text-soft">{hint}</span>}
    </label>
  );
}

const control = "min-h-10 w-full rounded-md border border-line bg-panel px-3 text-sm text-ink";

export function Input(props: InputHTMLAttributes<HTMLInputElement>) {
  return <input {...props} className={`${control} ${props.className ?? ""}`} />;
}

export function Select(props: SelectHTMLAttributes<HTMLSelectElement>) {
  return <select {...props} className={`${control} ${props.className ?? ""}`} />;
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
  return (
    <div role={tone === "bad" ? "alert" : "status"} className={`rounded-md border px-4 py-3 text-sm ${look}`}>
      <p className="flex items-center gap-2 font-semibold"><AlertTriangle className="size-4 shrink-0" aria-hidden />{title}</p>
      {children && <div className="mt-1">{children}</div>}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return <p role="status" className="flex items-center gap-2 py-6 text-sm text-soft"><LoaderCircle className="size-4 animate-spin" aria-hidden />Loading {what}…</p>;
}

export function Facts({ rows }: { rows: [string, ReactNode][] }) {
  return (
    <dl className="grid grid-cols-[minmax(7rem,auto)_1fr] gap-x-4 gap-y-2 text-sm">
      {rows.map(([name, value]) => (
        <div key={name} className="contents"><dt className="text-soft">{name}</dt><dd className="min-w-0 break-words">{value}</dd></div>
      ))}
    </dl>
  );
}

export function Instant({ at }: { at: string }) {
  return <time dateTime={at} title={`${at} (UTC)`}>{new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" })}</time>;
}
