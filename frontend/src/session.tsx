import { createContext, useContext, useEffect, useState, type ReactNode } from "react";
import { keepSession, onSession, refresh, type Schemas } from "./api/client";

type Me = Schemas["Me"];
type State = { status: "loading" } | { status: "out" } | { status: "in"; me: Me };

const Context = createContext<State>({ status: "loading" });

/** SessionProvider knows who is logged in; at the start it asks with the refresh cookie. */
export function SessionProvider({ children }: { children: ReactNode }) {
  const [state, setState] = useState<State>({ status: "loading" });
  useEffect(() => {
    onSession((session) => setState(session ? { status: "in", me: session.me } : { status: "out" }));
    void refresh();
  }, []);
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

export function endSession(): void {
  keepSession(null);
}
