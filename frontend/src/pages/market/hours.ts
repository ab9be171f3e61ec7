export const days = 7;
const hour = 3_600_000;

export interface Day { label: Date; cells: (Cell | null)[] }
export interface Cell { start: Date; index: number }

/** firstHour is the present hour's beginning in the reader's own zone, also where zones are half an hour off. */
export function firstHour(now: Date): Date {
  return new Date(now.getFullYear(), now.getMonth(), now.getDate(), now.getHours());
}

/** lastHour is the midnight that ends the calendar. */
export function lastHour(from: Date): Date {
  return new Date(from.getFullYear(), from.getMonth(), from.getDate() + days);
}

/** week lays hours out by the reader's own days and hours; hours that are over, or that a clock change skips, are null. */
export function week(from: Date): Day[] {
  return Array.from({ length: days }, (_, day) => ({
    label: new Date(from.getFullYear(), from.getMonth(), from.getDate() + day),
    cells: Array.from({ length: 24 }, (_, h) => {
      const start = new Date(from.getFullYear(), from.getMonth(), from.getDate() + day, h);
      if (start < from || start.getHours() !== h) return null;
      return { start, index: Math.round((start.getTime() - from.getTime()) / hour) };
    }),
  }));
}

export interface Span { start: Date; end: Date }

/** pick is what choosing an hour makes of the span: a later hour ends it, any other begins a new one. */
export function pick(span: Span | null, at: Date): Span {
  const end = new Date(at.getTime() + hour);
  const single = span !== null && span.end.getTime() - span.start.getTime() <= hour;
  return single && at > span.start ? { start: span.start, end } : { start: at, end };
}

/** step is where an arrow key leads to in the grid of cells, over holes; the same place at an edge. */
export function step(cells: (Cell | null)[][], [row, column]: [number, number], key: string): [number, number] {
  const down = key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0, right = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
  if (down === 0 && right === 0) return [row, column];
  for (let r = row + down, c = column + right; r >= 0 && c >= 0 && r < cells.length && c < 24; r += down, c += right) {
    if (cells[r]?.[c]) return [r, c];
  }
  return [row, column];
}

/** inputValue is an instant as a datetime-local field wants it: local time without a zone. */
export function inputValue(at: Date): string {
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
