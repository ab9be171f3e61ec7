import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Session = Schemas["Session"];

/** Problem is a refusal by the server (RFC 9457), or the failure to reach it (status 0). */
export class Problem extends Error {
  constructor(readonly status: number, readonly type: string, title: string, readonly detail: string, readonly facts: Record<string, unknown>,
    readonly fields: { pointer: string; detail: string }[]) {
    super(detail || title);
  }
}

/** toProblem reads whatever an answer that is no success carries. */
export function toProblem(status: number, body: unknown): Problem {
  const p = (typeof body === "object" && body !== null ? body : {}) as Partial<Schemas["Problem"]>;
  return new Problem(status, p.type ?? "", p.title ?? `The server answered ${status}`, p.detail ?? "", p.facts ?? {}, p.errors ?? []);
}

/** What became of the session: a fresh one, none, or nobody answered and the old one may still be good. */
export type Refreshed = { status: "in"; session: Session } | { status: "out" } | { status: "unreachable" };

// The access token lives in memory only: a script that gets into the page finds nothing stored. The refresh token is a cookie that no
// script can read.
let token = "";
let refreshing: Promise<Refreshed> | null = null;
let listener: (session: Session | null) => void = () => {};

export function onSession(next: (session: Session | null) => void): void {
  listener = next;
}

export function keepSession(session: Session | null): void {
  token = session?.access_token ?? "";
  listener(session);
}

/**
 * refresh trades the cookie for a session. Several callers share one request, and several tabs take turns: the cookie rotates, and the
 * server ends a session whose cookie is used twice. Only the server's own 401 ends the session here, not a network that is away.
 */
export function refresh(): Promise<Refreshed> {
  refreshing ??= inTurn(trade).then((result) => {
    refreshing = null;
    if (result.status === "in") keepSession(result.session);
    if (result.status === "out") keepSession(null);
    return result;
  });
  return refreshing;
}

async function trade(): Promise<Refreshed> {
  try {
    const answer = await fetch("/v1/sessions/refresh", { method: "POST", credentials: "same-origin" });
    if (answer.ok) return { status: "in", session: (await answer.json()) as Session };
    return { status: answer.status === 401 ? "out" : "unreachable" };
  } catch {
    return { status: "unreachable" };
  }
}

/** inTurn holds a lock that all tabs share. Browsers have locks in secure contexts only; elsewhere tabs are on their own. */
async function inTurn(work: () => Promise<Refreshed>): Promise<Refreshed> {
  const locks = (globalThis.navigator as Partial<Navigator> | undefined)?.locks;
  return locks ? await locks.request("leasehold-refresh", work) : work();
}

const authorize: Middleware = {
  onRequest({ request }) {
    if (token) request.headers.set("Authorization", `Bearer ${token}`);
    return request;
  },
};

// Changes that nobody has confirmed yet, with their keys.
const unconfirmed = new Map<string, string>();

/**
 * send repeats a change whose answer was lost under the same Idempotency-Key, so that clicking again cannot pay or book twice. Once
 * the server has decided, yes or no, the next click is a change of its own: the server keeps some refusals, and would only repeat them.
 */
async function send(request: Request): Promise<Response> {
  const fresh = request.headers.get("Idempotency-Key");
  if (fresh === null) return fetch(request);
  const change = `${request.method} ${request.url} ${await request.clone().text()}`;
  const key = unconfirmed.get(change) ?? fresh;
  unconfirmed.set(change, key);
  request.headers.set("Idempotency-Key", key);
  const answer = await fetch(request);
  if (decided(answer.status)) unconfirmed.delete(change);
  return answer;
}

/** decided: not a failure, not a log-in that ran out, and not "the first attempt still runs" (409). */
function decided(status: number): boolean {
  return status < 500 && status !== 401 && status !== 409;
}

export const api = createClient<paths>({
  baseUrl: globalThis.location?.origin ?? "",
  // A token that has just expired is renewed once, and the request is sent again.
  async fetch(request: Request) {
    const again = request.clone();
    const answer = await send(request);
    if (answer.status !== 401 || request.url.endsWith("/v1/sessions") || (await refresh()).status !== "in") return answer;
    again.headers.set("Authorization", `Bearer ${token}`);
    return send(again);
  },
});
api.use(authorize);

type Call<T> = Promise<{ data?: T; error?: unknown; response: Response }>;

/** answered waits for an answer and throws the problem that came instead of one. */
async function answered<T>(call: Call<T>): Promise<{ data: T; response: Response }> {
  let answer;
  try {
    answer = await call;
  } catch {
    throw new Problem(0, "", "The server cannot be reached", "The server cannot be reached. Check your connection, then try again.", {}, []);
  }
  if (!answer.response.ok) throw toProblem(answer.response.status, answer.error);
  return { data: answer.data as T, response: answer.response };
}

/** take returns an answer's data, or throws the problem that came instead. */
export async function take<T>(call: Call<T>): Promise<T> {
  return (await answered(call)).data;
}

export interface Versioned<T> { data: T; etag: string }

/** takeVersioned is take with the version that a change has to name in If-Match. */
export async function takeVersioned<T>(call: Call<T>): Promise<Versioned<T>> {
  const { data, response } = await answered(call);
  return { data, etag: response.headers.get("ETag") ?? "" };
}

export interface Part<T> { items: T[]; next: string | null }

/** takePart is one page of a list, and the cursor of the next one. */
export async function takePart<T>(call: Call<{ items: T[] }>): Promise<Part<T>> {
  const { data, response } = await answered(call);
  return { items: data.items, next: nextCursor(response.headers.get("Link")) };
}

/** from is the query parameter for the page that begins at a cursor. */
export function from(cursor: string | undefined): { cursor?: string } {
  return cursor ? { cursor } : {};
}

export function nextCursor(link: string | null): string | null {
  const target = /<([^>]+)>\s*;\s*rel="?next"?/.exec(link ?? "")?.[1];
  return target ? new URL(target, "http://any").searchParams.get("cursor") : null;
}

/** once is the header of an intended change: a fresh key for each, 128 random bits. Not randomUUID, which pages by plain HTTP lack. */
export function once(): { "Idempotency-Key": string } {
  return { "Idempotency-Key": [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("") };
}
