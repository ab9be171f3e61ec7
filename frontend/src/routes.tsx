import { createBrowserRouter, Navigate } from "react-router";
import { Frame } from "./frame";

// Every page of the portal, each a bundle of its own.
export const router = createBrowserRouter([
  { path: "/login", lazy: async () => ({ Component: (await import("./pages/login")).Login }) },
  {
    element: <Frame />,
    children: [
      { path: "/", element: <Navigate to="/market" replace /> },
      { path: "/market", lazy: async () => ({ Component: (await import("./pages/market")).Market }) },
      { path: "/quotes/:id", lazy: async () => ({ Component: (await import("./pages/quote")).QuotePage }) },
      { path: "/leases", lazy: async () => ({ Component: (await import("./pages/leases")).Leases }) },
      { path: "/leases/:id", lazy: async () => ({ Component: (await import("./pages/lease")).LeasePage }) },
      { path: "/billing", lazy: async () => ({ Component: (await import("./pages/billing")).Billing }) },
      { path: "/keys", lazy: async () => ({ Component: (await import("./pages/keys")).Keys }) },
      { path: "/admin/fleet", lazy: async () => ({ Component: (await import("./pages/fleet")).Fleet }) },
      { path: "*", lazy: async () => ({ Component: (await import("./pages/missing")).Missing }) },
    ],
  },
]);

/** paths are the links that pages make; a page never writes a path by hand. */
export const paths = {
  login: "/login", market: "/market", leases: "/leases", billing: "/billing", keys: "/keys", fleet: "/admin/fleet",
  quote: (id: string) => `/quotes/${id}`,
  lease: (id: string) => `/leases/${id}`,
};
