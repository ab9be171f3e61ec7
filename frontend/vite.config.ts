import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// In development the portal runs on vite's own port and passes API calls on to a running `make run`.
const api = process.env["LEASEHOLD_URL"] ?? "http://127.0.0.1:8080";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  server: { proxy: { "/v1": api, "/.well-known": api } },
  build: { target: "es2023", sourcemap: false, assetsInlineLimit: 0 },
});
