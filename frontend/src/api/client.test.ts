import { expect, test } from "vitest";
import { toProblem } from "./client";

test("a problem keeps its facts and defective fields", () => {
  const p = toProblem(402, { type: "/problems/insufficient-balance", title: "Payment Required", detail: "Top up first", facts: { needed_minor: 5 }, errors: [{ pointer: "/x", detail: "bad" }] });
  expect(p.message).toBe("Top up first");
  expect(p.facts["needed_minor"]).toBe(5);
  expect(p.fields[0]?.pointer).toBe("/x");
});

test("an answer that is no problem document still says something", () => {
  expect(toProblem(502, "<html>").message).toBe("The server answered 502");
});
