import type { components } from "./api/schema";

export type Amount = components["schemas"]["Money"];
type Rate = components["schemas"]["Rate"];

const exponents: Record<string, number> = { USD: 2, EUR: 2, CNY: 2, JPY: 0, KWD: 3 };

/** money renders minor units exactly, without floating point: {amount: 123450, currency: "USD"} → "1,234.50 USD". */
export function money({ amount, currency }: Amount): string {
  const digits = exponents[currency] ?? 2;
  const text = Math.abs(amount).toString().padStart(digits + 1, "0");
  const whole = text.slice(0, text.length - digits).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const fraction = digits > 0 ? `.${text.slice(-digits)}` : "";
  return `${amount < 0 ? "−" : ""}${whole}${fraction} ${currency}`;
}

/** rate renders micro-units: 2490000 → "2.49 USD / GPU-hour". */
export function rate({ micros, currency, per }: Rate): string {
  const whole = Math.trunc(micros / 1_000_000);
  const fraction = (micros % 1_000_000).toString().padStart(6, "0").replace(/0+$/, "").padEnd(2, "0");
  return `${whole}.${fraction} ${currency} / ${per === "gpu" ? "GPU" : "instance"}-hour`;
}

/** minorFrom reads a decimal that a person typed, exactly; null when it is none or has too many decimals. */
export function minorFrom(text: string, currency: string): number | null {
  const digits = exponents[currency] ?? 2;
  const match = /^(\d{1,9})(?:\.(\d+))?$/.exec(text.trim());
  if (!match || (match[2]?.length ?? 0) > digits) return null;
  return Number(`${match[1]}${(match[2] ?? "").padEnd(digits, "0")}`);
}

/** duration renders seconds in the two largest units: 93784 → "1 d 2 h". */
export function duration(seconds: number): string {
  const units: [string, number][] = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const parts: string[] = [];
  let rest = Math.max(0, Math.round(seconds));
  for (const [name, size] of units) {
    const n = Math.floor(rest / size);
    rest -= n * size;
    if (n > 0 && parts.length < 2) parts.push(`${n} ${name}`);
  }
  return parts.join(" ") || "0 s";
}

/** seconds between two instants. */
export function between(start: string, end: string): number {
  return (Date.parse(end) - Date.parse(start)) / 1000;
}

export function bytes(n: number): string {
  return `${Math.round(n / 2 ** 30)} GiB`;
}

/** local renders an instant in the reader's own zone. */
export function local(at: string): string {
  return new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}
