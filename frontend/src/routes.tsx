import { createBrowserRouter, Navigate } from "react-router";
import { Broken } from "./broken";
import { Frame } from "./frame";
import { paths } from "./paths";
import { home, useMe } from "./session";
import { Skeleton } from "./ui";

const waiting = <main className="p-6"><Skeleton what="the page" /></main>;

function Home() {
  return <Navigate to={home(useMe())} replace />;
}

// Every page of the portal, each a bundle of its own.
export const router = createBrowserRouter([
  {
    ErrorBoundary: Broken,
    hydrateFallbackElement: waiting,
    children: [
      { path: paths.login, lazy: async () => ({ Component: (await import("./pages/login")).Login }) },
      {
        element: <Frame />,
        children: [
          {
            ErrorBoundary: Broken,
            children: [
              { path: "/", element: <Home /> },
              { path: paths.market, lazy: async () => ({ Component: (await import("./pages/market")).Market }) },
              { path: paths.quote(":id"), lazy: async () => ({ Component: (await import("./pages/quote")).QuotePage }) },
              { path: paths.leases, lazy: async () => ({ Component: (await import("./pages/leases")).Leases }) },
              { path: paths.lease(":id"), lazy: async () => ({ Component: (await import("./pages/lease")).LeasePage }) },
              { path: paths.billing, lazy: async () => ({ Component: (await import("./pages/billing")).Billing }) },
              { path: paths.keys, lazy: async () => ({ Component: (await import("./pages/keys")).Keys }) },
              { path: paths.device, lazy: async () => ({ Component: (await import("./pages/device")).Device }) },
              { path: paths.fleet, lazy: async () => ({ Component: (await import("./pages/fleet")).Fleet }) },
              { path: "*", lazy: async () => ({ Component: (await import("./pages/missing")).Missing }) },
            ],
          },
        ],
      },
    ],
  },
]);
