import { expect, test } from "vitest";
import { days, firstHour, inputValue, lastHour, pick, step, week } from "./hours";

const from = firstHour(new Date(2026, 11, 1, 15, 42, 10));
const at = (day: number, hour: number) => new Date(2026, 11, day, hour);

test("the calendar begins with the present hour, and days stand under each other by the hour", () => {
  const rows = week(from);
  expect(rows).toHaveLength(days);
  expect(rows[0]?.cells.slice(0, 15).every((c) => c === null)).toBe(true);
  expect(rows[0]?.cells[15]).toEqual({ start: at(1, 15), index: 0 });
  expect(rows[1]?.cells[0]).toEqual({ start: at(2, 0), index: 9 });
  expect(rows.at(-1)?.cells[23]?.start.getTime()).toBe(lastHour(from).getTime() - 3_600_000);
});

test("a second, later hour ends the span; an earlier one or a third begins a new one", () => {
  const first = pick(null, at(2, 8));
  expect(first).toEqual({ start: at(2, 8), end: at(2, 9) });
  const second = pick(first, at(2, 12));
  expect(second).toEqual({ start: at(2, 8), end: at(2, 13) });
  expect(pick(second, at(3, 1))).toEqual({ start: at(3, 1), end: at(3, 2) });
  expect(pick(first, at(1, 20))).toEqual({ start: at(1, 20), end: at(1, 21) });
});

test("arrow keys stay in the grid and on hours that are not over", () => {
  const cells = week(from).map((d) => d.cells);
  expect(step(cells, [0, 15], "ArrowRight")).toEqual([0, 16]);
  expect(step(cells, [0, 15], "ArrowLeft")).toEqual([0, 15]);
  expect(step(cells, [1, 3], "ArrowUp")).toEqual([1, 3]);
  expect(step(cells, [1, 3], "ArrowDown")).toEqual([2, 3]);
  expect(step(cells, [1, 3], "Tab")).toEqual([1, 3]);
});

test("a field for local time gets local time", () => {
  expect(inputValue(at(2, 8))).toBe("2026-12-02T08:00");
});
