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

// The access token lives in memory only: a script that gets into the page finds nothing stored. The refresh token is a cookie that no
// script can read.
let token = "";
let refreshing: Promise<Session | null> | null = null;
let listener: (session: Session | null) => void = () => {};

export function onSession(next: (session: Session | null) => void): void {
  listener = next;
}

export function keepSession(session: Session | null): void {
  token = session?.access_token ?? "";
  listener(session);
}

/** refresh trades the cookie for a session; null when there is none. Several callers share one request. */
export function refresh(): Promise<Session | null> {
  refreshing ??= fetch("/v1/sessions/refresh", { method: "POST", credentials: "same-origin" })
    .then(async (answer) => (answer.ok ? ((await answer.json()) as Session) : null))
    .catch(() => null)
    .then((session) => {
      keepSession(session);
      refreshing = null;
      return session;
    });
  return refreshing;
}

const authorize: Middleware = {
  onRequest({ request }) {
    if (token) request.headers.set("Authorization", `Bearer ${token}`);
    return request;
  },
};

export const api = createClient<paths>({
  baseUrl: "/",
  // A token that has just expired is renewed once, and the request is sent again.
  async fetch(request: Request) {
    const again = request.clone();
    const answer = await fetch(request);
    if (answer.status !== 401 || request.url.includes("/v1/sessions") || !(await refresh())) return answer;
    again.headers.set("Authorization", `Bearer ${token}`);
    return fetch(again);
  },
});
api.use(authorize);

/** take returns an answer's data, or throws the problem that came instead. */
export async function take<T>(call: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  let answer;
  try {
    answer = await call;
  } catch {
    throw new Problem(0, "", "The server cannot be reached", "The server cannot be reached. Check your connection, then try again.", {}, []);
  }
  if (!answer.response.ok) throw toProblem(answer.response.status, answer.error);
  return answer.data as T;
}

/** once is the header of an intended change: a fresh key for each. */
export function once(): { "Idempotency-Key": string } {
  return { "Idempotency-Key": crypto.randomUUID() };
}
