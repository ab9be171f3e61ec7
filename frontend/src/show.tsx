import { useInfiniteQuery, type InfiniteData, type QueryKey, type UseInfiniteQueryResult, type UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Problem, type Part } from "./api/client";
import { money } from "./format";
import { Alert, Button, Skeleton } from "./ui";

type Asked<T> = Pick<UseQueryResult<T>, "data" | "error" | "isFetching"> & { refetch: () => unknown };

/** Show renders a query's states: loading, error with a way on, or its data. What was read stays, with a word when it may be old. */
export function Show<T>({ query, what, children }: { query: Asked<T>; what: string; children: (data: T) => ReactNode }) {
  const failure = query.error && (
    <Alert tone={query.data === undefined ? "bad" : "warn"} title={query.data === undefined ? `Could not load ${what}` : `This may be old: ${what} could not be loaded again`}>
      <p>{query.error.message}</p>
      <Button busy={query.isFetching} onClick={() => void query.refetch()}>Try again</Button>
    </Alert>
  );
  if (query.data !== undefined) return <>{failure}{children(query.data)}</>;
  return failure ?? <Skeleton what={what} />;
}

/** useList reads a list page by page, as the server's cursors say. */
export function useList<T>(queryKey: QueryKey, read: (cursor: string | undefined) => Promise<Part<T>>, refetchInterval: number | false = false) {
  return useInfiniteQuery({
    queryKey, refetchInterval,
    queryFn: ({ pageParam }) => read(pageParam),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next,
  });
}

/** ShowList is Show for a list: all that was read so far, and a button for more. */
export function ShowList<T>({ query, what, children }: { query: UseInfiniteQueryResult<InfiniteData<Part<T>>>; what: string; children: (items: T[]) => ReactNode }) {
  return (
    <Show query={query} what={what}>
      {({ pages }) => (
        <>
          {children(pages.flatMap((p) => p.items))}
          {query.hasNextPage && <div className="mt-3 text-center"><Button busy={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>Show more</Button></div>}
        </>
      )}
    </Show>
  );
}

/** Refusal says what went wrong, with the numbers, and what to do next. */
export function Refusal({ error, next }: { error: Error | null; next?: ReactNode }) {
  if (!error) return null;
  const problem = error instanceof Problem ? error : null;
  const needed = problem?.facts["needed_minor"], available = problem?.facts["available_minor"];
  const currency = String(problem?.facts["currency"] ?? "USD");
  return (
    <Alert title={error.message}>
      {typeof needed === "number" && typeof available === "number" && (
        <p>Needed: {money({ amount: needed, currency })}. Available: {money({ amount: available, currency })}.</p>
      )}
      {problem?.fields.map((f) => <p key={f.pointer}>{f.pointer.slice(1)}: {f.detail}</p>)}
      {next}
    </Alert>
  );
}
