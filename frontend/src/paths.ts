/** paths are the links that pages make; a page never writes a path by hand. */
export const paths = {
  login: "/login", market: "/market", leases: "/leases", billing: "/billing", keys: "/keys", fleet: "/admin/fleet", device: "/device",
  quote: (id: string) => `/quotes/${id}`,
  lease: (id: string) => `/leases/${id}`,
};
