import { useMutation } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { Navigate, NavLink, Outlet, useLocation, useNavigation } from "react-router";
import { api, once, take } from "./api/client";
import { SecondFactor } from "./pages/second-factor";
import { paths } from "./paths";
import { endSession, hasFleet, home, useSession } from "./session";
import { Alert, Button, Skeleton } from "./ui";

/** Frame is what is around every page behind the log-in. */
export function Frame() {
  const session = useSession();
  const location = useLocation();
  const navigation = useNavigation();
  useFocusOnPage(location.pathname);
  const logOut = useMutation({
    mutationFn: () => take(api.DELETE("/v1/sessions/current", { params: { header: once() } })),
    onSettled: endSession,
  });
  if (session.status === "loading") return <main className="p-6"><Skeleton what="your session" /></main>;
  if (session.status === "unreachable") return <main className="p-6"><Alert title="The server cannot be reached"><p>Check your connection.</p><Button onClick={() => globalThis.location.reload()}>Try again</Button></Alert></main>;
  if (session.status === "out") return <Navigate to={`${paths.login}?next=${encodeURIComponent(location.pathname + location.search)}`} replace />;
  const { me } = session;
  const links: [string, string][] = [[paths.market, "Market"], [paths.leases, "Leases"], [paths.billing, "Billing"], [paths.keys, "Keys"]];
  if (hasFleet(me)) links.push([paths.fleet, "Fleet"]);
  return (
    <>
      <a href="#main" className="sr-only focus:not-sr-only focus:absolute focus:z-10 focus:bg-panel focus:p-2">Skip to the page</a>
      <header className="border-b border-line bg-panel">
        {me.payment_gateway === "test" && (
          <p className="bg-warn-soft px-4 py-1.5 text-center text-xs font-medium text-warn">Test payments: no real money moves.</p>
        )}
        {navigation.state !== "idle" && <div role="status" className="absolute inset-x-0 top-0 h-1 animate-pulse bg-accent"><span className="sr-only">Loading the page…</span></div>}
        <div className="mx-auto flex max-w-6xl flex-wrap items-center gap-x-6 gap-y-2 px-4 py-3">
          <NavLink to={home(me)} className="text-lg font-bold tracking-tight">Leasehold</NavLink>
          <nav aria-label="Main" className="flex flex-wrap gap-1 max-sm:order-last max-sm:-mx-3 max-sm:w-full">
            {links.map(([to, name]) => (
              <NavLink key={to} to={to}
                className={({ isActive }) => `rounded-md px-3 py-2 text-sm font-medium ${isActive ? "bg-calm-soft text-ink" : "text-soft hover:text-ink"}`}>
                {name}
              </NavLink>
            ))}
          </nav>
          <div className="ml-auto flex items-center gap-3 text-sm text-soft">
            <span className="hidden sm:inline">{me.user?.email ?? me.actor} · {me.organization.name}</span>
            <Button onClick={() => logOut.mutate()} busy={logOut.isPending}>Log out</Button>
          </div>
        </div>
      </header>
      {me.second_factor_missing ? <SecondFactor /> : <Outlet />}
    </>
  );
}

/** useFocusOnPage moves the focus to a new page, so that the keyboard and screen readers start where it begins. */
function useFocusOnPage(pathname: string): void {
  const first = useRef(true);
  useEffect(() => {
    if (first.current) first.current = false;
    else document.getElementById("main")?.focus({ preventScroll: true });
  }, [pathname]);
}
