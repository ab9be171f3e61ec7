import { useMutation } from "@tanstack/react-query";
import { Suspense } from "react";
import { Navigate, NavLink, Outlet, useLocation } from "react-router";
import { api, once, take } from "./api/client";
import { endSession, useSession } from "./session";
import { Button, Loading } from "./ui";

/** Frame is what is around every page behind the log-in. */
export function Frame() {
  const session = useSession();
  const location = useLocation();
  const logOut = useMutation({
    mutationFn: () => take(api.DELETE("/v1/sessions/current", { params: { header: once() } })),
    onSettled: endSession,
  });
  if (session.status === "loading") return <main className="p-6"><Loading what="your session" /></main>;
  if (session.status === "out") return <Navigate to={`/login?next=${encodeURIComponent(location.pathname)}`} replace />;
  const { me } = session;
  const links: [string, string][] = [["/market", "Market"], ["/leases", "Leases"], ["/billing", "Billing"], ["/keys", "Keys"]];
  if (me.organization.kind === "operator") links.push(["/admin/fleet", "Fleet"]);
  return (
    <>
      <a href="#main" className="sr-only focus:not-sr-only focus:absolute focus:bg-panel focus:p-2">Skip to the page</a>
      {me.payment_gateway === "test" && (
        <p className="bg-warn-soft px-4 py-1.5 text-center text-xs font-medium text-warn">Test payments: no real money moves.</p>
      )}
      <header className="border-b border-line bg-panel">
        <div className="mx-auto flex max-w-6xl flex-wrap items-center gap-x-6 gap-y-2 px-4 py-3">
          <NavLink to="/market" className="text-lg font-bold tracking-tight">Leasehold</NavLink>
          <nav aria-label="Main" className="flex flex-wrap gap-1">
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
      <Suspense fallback={<main className="p-6"><Loading what="the page" /></main>}><Outlet /></Suspense>
    </>
  );
}
