import { Copy, Download, LoaderCircle } from "lucide-react";
import { createContext, useContext, useId, useState, type ButtonHTMLAttributes, type InputHTMLAttributes, type ReactNode, type SelectHTMLAttributes, type TextareaHTMLAttributes } from "react";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { kind?: "primary" | "plain" | "danger"; busy?: boolean; why?: string | undefined };

/** Button says why when it is disabled, in words that are there without hovering. */
export function Button({ kind = "plain", busy = false, why, disabled, children, className = "", ...rest }: ButtonProps) {
  const reason = useId();
  const look = {
    primary: "bg-accent text-on-accent border-transparent",
    plain: "bg-panel text-ink border-line hover:border-accent",
    danger: "bg-panel text-bad border-bad",
  }[kind];
  const button = (
    <button type="button" {...rest} disabled={disabled || busy || Boolean(why)} aria-busy={busy} aria-describedby={why ? reason : undefined}
      className={`inline-flex min-h-10 items-center justify-center gap-2 rounded-md border px-4 py-1.5 text-sm font-semibold disabled:cursor-not-allowed disabled:opacity-60 ${look} ${className}`}>
      {busy && <LoaderCircle className="size-4 animate-spin" aria-hidden />}
      {children}
    </button>
  );
  if (!why) return button;
  return <span className="inline-flex max-w-full flex-col gap-1">{button}<span id={reason} className="text-xs text-soft">{why}</span></span>;
}

/** What the control inside a Field is called by. */
const FieldIds = createContext<{ id: string; hint: string | undefined } | null>(null);

/** Field names its control, and the hint describes it, so that neither becomes part of the other's text. */
export function Field({ label, hint, children }: { label: string; hint?: ReactNode; children: ReactNode }) {
  const id = useId();
  const ids = { id, hint: hint ? `${id}-hint` : undefined };
  return (
    <div className="flex min-w-0 flex-col gap-1 text-sm">
      <label htmlFor={id} className="font-medium">{label}</label>
      <FieldIds value={ids}>{children}</FieldIds>
      {hint && <span id={ids.hint} className="text-xs text-soft">{hint}</span>}
    </div>
  );
}

function useControl(className = "") {
  const ids = useContext(FieldIds);
  return { ...(ids ? { id: ids.id, "aria-describedby": ids.hint } : {}), className: `min-h-10 w-full min-w-0 rounded-md border border-control bg-panel px-3 text-sm text-ink ${className}` };
}

export function Input({ className, ...rest }: InputHTMLAttributes<HTMLInputElement>) {
  return <input {...rest} {...useControl(className)} />;
}

export function TextArea({ className, ...rest }: TextareaHTMLAttributes<HTMLTextAreaElement>) {
  return <textarea {...rest} {...useControl(`py-2 ${className ?? ""}`)} />;
}

export function Select({ className, ...rest }: SelectHTMLAttributes<HTMLSelectElement>) {
  return <select {...rest} {...useControl(className)} />;
}

export function CopyText({ text }: { text: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text); // there is no clipboard for a page by plain HTTP
      setSaid("copied");
    } catch {
      setSaid("select it by hand");
    }
  };
  return (
    <span className="inline-flex max-w-full flex-wrap items-center gap-1">
      <code className="min-w-0 rounded bg-calm-soft px-2 py-1 text-xs break-all">{text}</code>
      <button type="button" className="rounded p-2 text-soft hover:text-ink" aria-label={`Copy ${text}`} onClick={() => void copy()}><Copy className="size-4" aria-hidden /></button>
      <span role="status" className="text-xs text-good">{said}</span>
    </span>
  );
}

/** Save offers a document as a file. */
export function Save({ name, content }: { name: string; content: unknown }) {
  const save = () => {
    const url = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    URL.revokeObjectURL(url);
  };
  return <Button onClick={save} aria-label={`Download ${name}`}><Download className="size-4" aria-hidden />Download</Button>;
}
