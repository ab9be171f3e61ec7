import { expect, test } from "vitest";
import { combine } from "./series";

const device = (name: string, ...points: [second: number, value: number][]) => ({ node: "n", device: name, metric: "m", points: points.map(([s, value]) => ({ at: new Date(s * 1000).toISOString(), value })) });

test("devices are averaged in steps of five seconds", () => {
  expect(combine([device("a", [0, 10], [6, 20]), device("b", [1, 30])], "mean")).toEqual([{ at: 0, value: 20 }, { at: 5000, value: 20 }]);
});

test("a sum counts each device once, however often it was sampled", () => {
  expect(combine([device("a", [0, 10], [2, 20]), device("b", [1, 5])], "sum")).toEqual([{ at: 0, value: 20 }]);
});

test("nothing was sampled, nothing is drawn", () => {
  expect(combine([], "mean")).toEqual([]);
});
