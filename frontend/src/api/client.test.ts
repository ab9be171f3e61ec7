import { afterEach, expect, test, vi } from "vitest";
import { api, nextCursor, once, onSession, Problem, refresh, take, toProblem } from "./client";

afterEach(() => vi.unstubAllGlobals());

const json = (status: number, body: unknown) => new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/json" } });

/** server answers each request with the next of the answers; a thrown one is a network that is away. */
function server(...answers: (() => Response)[]): Request[] {
  const seen: Request[] = [];
  vi.stubGlobal("fetch", (input: RequestInfo, init?: RequestInit) => {
    seen.push(new Request(new URL(input instanceof Request ? input.url : input, "http://portal.test"), input instanceof Request ? input : init));
    const next = answers.shift();
    return next ? Promise.resolve().then(next) : Promise.reject(new Error("one request too many"));
  });
  return seen;
}

const away = () => { throw new TypeError("network is away"); };
const payIn = (amount: number) => take(api.POST("/v1/billing/top-ups", { baseUrl: "http://portal.test", params: { header: once() }, body: { amount: { amount, currency: "USD" }, payment_method: "pm" } }));
const keys = (seen: Request[]) => seen.map((r) => r.headers.get("Idempotency-Key"));

test("a problem keeps its facts and defective fields", () => {
  const p = toProblem(402, { type: "/problems/insufficient-balance", title: "Payment Required", detail: "Top up first", facts: { needed_minor: 5 }, errors: [{ pointer: "/x", detail: "bad" }] });
  expect(p.message).toBe("Top up first");
  expect(p.facts["needed_minor"]).toBe(5);
  expect(p.fields[0]?.pointer).toBe("/x");
});

test("every change has a key of its own, by plain HTTP too", () => {
  const { crypto } = globalThis;
  vi.stubGlobal("crypto", { getRandomValues: (bytes: Uint8Array<ArrayBuffer>) => crypto.getRandomValues(bytes) }); // what such a page has of it
  const made = new Set(Array.from({ length: 50 }, () => once()["Idempotency-Key"]));
  expect(made.size).toBe(50);
  for (const key of made) expect(key).toMatch(/^[0-9a-f]{32}$/);
});

test("an answer that is no problem document still says something", () => {
  expect(toProblem(502, "<html>").message).toBe("The server answered 502");
});

test("the cursor of the next page comes from the Link header", () => {
  expect(nextCursor('</v1/leases?limit=50&cursor=a%2Bb>; rel="next"')).toBe("a+b");
  expect(nextCursor("</v1/leases?cursor=x>; rel=prev")).toBeNull();
  expect(nextCursor(null)).toBeNull();
});

test("a change whose answer was lost is repeated under the same key", async () => {
  const seen = server(away, () => json(201, { id: "a" }), () => json(201, { id: "b" }));
  await expect(payIn(100)).rejects.toMatchObject({ status: 0 });
  await payIn(100);
  await payIn(100);
  const [lost, again, next] = keys(seen);
  expect(again).toBe(lost);
  expect(next).not.toBe(lost);
});

test("after a refusal the next click is a change of its own, while one still runs it is not", async () => {
  const seen = server(() => json(409, {}), () => json(422, {}), () => json(201, {}));
  await expect(payIn(5)).rejects.toMatchObject({ status: 409 });
  await expect(payIn(5)).rejects.toMatchObject({ status: 422 });
  await payIn(5);
  const [running, refused, next] = keys(seen);
  expect(refused).toBe(running);
  expect(next).not.toBe(refused);
});

test("a different change never shares a key", async () => {
  const seen = server(away, () => json(201, {}));
  await expect(payIn(7)).rejects.toBeInstanceOf(Problem);
  await payIn(8);
  expect(new Set(keys(seen)).size).toBe(2);
});

test("an expired token is renewed once, and the change goes out again under its key", async () => {
  const seen = server(() => json(401, {}), () => json(201, { access_token: "fresh", me: {} }), () => json(201, { id: "a" }));
  await payIn(3);
  expect(seen.map((r) => new URL(r.url).pathname)).toEqual(["/v1/billing/top-ups", "/v1/sessions/refresh", "/v1/billing/top-ups"]);
  expect(seen[2]?.headers.get("Authorization")).toBe("Bearer fresh");
  expect(keys(seen)[2]).toBe(keys(seen)[0]);
});

test("a network that is away does not log anybody out, a 401 does", async () => {
  const heard = vi.fn();
  onSession(heard);
  server(away, () => json(503, {}), () => json(401, {}));
  expect((await refresh()).status).toBe("unreachable");
  expect((await refresh()).status).toBe("unreachable");
  expect(heard).not.toHaveBeenCalled();
  expect((await refresh()).status).toBe("out");
  expect(heard).toHaveBeenCalledExactlyOnceWith(null);
});

test("callers at the same time share one refresh", async () => {
  const seen = server(() => json(201, { access_token: "t", me: {} }));
  const [a, b] = await Promise.all([refresh(), refresh()]);
  expect(a).toBe(b);
  expect(seen).toHaveLength(1);
});
