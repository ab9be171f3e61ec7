import { useQueryClient } from "@tanstack/react-query";
import { createContext, useContext, useEffect, useState, type ReactNode } from "react";
import { keepSession, onSession, refresh, type Schemas } from "./api/client";
import { paths } from "./paths";

type Me = Schemas["Me"];
type State = { status: "loading" } | { status: "unreachable" } | { status: "out" } | { status: "in"; me: Me };

const Context = createContext<State>({ status: "loading" });

/** SessionProvider knows who is logged in; at the start it asks with the refresh cookie. What one person read is gone for the next. */
export function SessionProvider({ children }: { children: ReactNode }) {
  const [state, setState] = useState<State>({ status: "loading" });
  const queries = useQueryClient();
  useEffect(() => {
    let actor = "";
    onSession((session) => {
      if (session === null || (actor !== "" && actor !== session.me.actor)) queries.clear();
      actor = session?.me.actor ?? "";
      setState(session ? { status: "in", me: session.me } : { status: "out" });
    });
    void refresh().then(({ status }) => { if (status === "unreachable") setState({ status }); });
  }, [queries]);
  return <Context value={state}>{children}</Context>;
}

export function useSession(): State {
  return useContext(Context);
}

/** useMe is for pages behind the log-in. */
export function useMe(): Me {
  const state = useSession();
  if (state.status !== "in") throw new Error("a page that needs a log-in is shown without one");
  return state.me;
}

/** home is where somebody starts: a provider has machines to look after, everybody else looks for some. */
export function home(me: Me): string {
  return me.organization.kind === "provider" ? paths.fleet : paths.market;
}

/** hasFleet: whether the server lets them see machines (routes.go). A provider sees its own, the operator all. */
export function hasFleet(me: Me): boolean {
  return me.organization.kind !== "customer";
}

export function endSession(): void {
  keepSession(null);
}
