// The portal's main job in a real browser, against everything real but hardware: log in, top up, quote, book, follow to active, see the
// SSH command, the bill, the provider's own machines and the admin's fleet; axe on every page in light and dark; no console errors; no other origin; no style that is
// injected as text; screenshots at 360 and 1440 px in test-results.
//
// LEASEHOLD_URL and LEASEHOLD_LOGINS name a running instance and its demo-logins.json; without them one is started and stopped here.
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { generateKeyPairSync } from "node:crypto";
import { chromium } from "playwright-core";

const results = new URL("../test-results/", import.meta.url).pathname;
mkdirSync(results, { recursive: true });
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const problems = [];

async function instance() {
  if (process.env.LEASEHOLD_URL) return { logins: { ...JSON.parse(readFileSync(process.env.LEASEHOLD_LOGINS, "utf8")), url: process.env.LEASEHOLD_URL }, stop: async () => {} };
  const data = mkdtempSync(join(tmpdir(), "leasehold-e2e-"));
  const child = spawn(new URL("../../bin/leasehold", import.meta.url).pathname, ["dev", "--data-dir", data, "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"] });
  const stop = () => new Promise((resolve) => {
    child.once("exit", () => { rmSync(data, { recursive: true, force: true }); resolve(); });
    child.kill("SIGINT");
  });
  await new Promise((resolve, reject) => {
    let said = "";
    child.stdout.on("data", (chunk) => { said += chunk; if (said.includes("Stop with Ctrl-C")) resolve(); });
    child.once("exit", (code) => reject(new Error(`leasehold dev ended with ${code}: ${said}`)));
  });
  child.removeAllListeners("exit");
  return { logins: JSON.parse(readFileSync(join(data, "demo-logins.json"), "utf8")), stop };
}

/** An OpenSSH public key, made from the raw key of an Ed25519 pair. */
function publicKey() {
  const raw = generateKeyPairSync("ed25519").publicKey.export({ format: "der", type: "spki" }).subarray(-32);
  const part = (b) => Buffer.concat([Buffer.from([0, 0, 0, b.length]), b]);
  return `ssh-ed25519 ${Buffer.concat([part(Buffer.from("ssh-ed25519")), part(raw)]).toString("base64")}`;
}

async function settled(page) {
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))); // charts follow a frame later
}

async function accessible(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  for (const v of violations) problems.push(`${name}: axe: ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ")).join(", ")}`);
}

async function check(page, name) {
  for (const width of [360, 1440]) {
    for (const colorScheme of ["dark", "light"]) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme });
      await settled(page);
      await accessible(page, `${name} at ${width} px, ${colorScheme}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) problems.push(`${name}: ${wide} px too wide at ${width} px`);
      const suffix = colorScheme === "dark" ? "-dark" : "";
      await page.screenshot({ path: join(results, `${name}-${width}${suffix}.png`), fullPage: (await page.getByRole("dialog").count()) === 0 });
    }
  }
}

async function logIn(page, url, { email, password }, home = "Market") {
  await page.goto(url);
  await page.getByLabel("E-mail").fill(email);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: home, level: 1 }).waitFor();
}

const row = (page, table, text) => page.getByRole("table", { name: table }).getByRole("row").filter({ hasText: text });

/** A name of its own for each run: a running instance keeps the keys of those before. */
const program = `e2e program ${Date.now()}`;

async function keys(page) {
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByLabel("Name of the key").fill("e2e");
  await page.getByLabel("Public key").fill(publicKey());
  await page.getByRole("button", { name: "Add SSH key" }).click();
  await row(page, "SSH keys", "e2e").first().waitFor();
  await page.getByLabel("Name of the API key").fill(program);
  await page.getByRole("button", { name: "Make API key" }).click();
  const secret = page.getByRole("dialog", { name: "Your new API key" });
  await secret.getByText(/^lh_/).waitFor();
  await secret.getByRole("button", { name: "I have copied it" }).click();
  await row(page, "API keys", program).waitFor();
  if (await page.getByText(/lh_\w+_\w{20}/).count()) problems.push("keys: the secret is shown again");
  await check(page, "keys");
  await row(page, "API keys", program).getByRole("button", { name: /Revoke/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke the key" }).click();
  await row(page, "API keys", program).getByText("revoked").waitFor();
}

async function payIn(page) {
  await page.getByRole("link", { name: "Billing" }).click();
  await page.getByLabel("Amount in USD").fill("1e3");
  await page.getByText("Give an amount").waitFor();
  await page.getByLabel("Amount in USD").fill("250.00");
  await page.getByRole("button", { name: "Pay in" }).click();
  await page.getByText("250.00 USD were paid in").waitFor();
  await page.getByLabel("Test card").selectOption("pm_card_chargeDeclined");
  await page.getByRole("button", { name: "Pay in" }).click();
  await page.getByText("The card was refused").waitFor();
  await row(page, "Payments, newest first", "failed").first().waitFor();
}

/** The calendar by keyboard alone: one stop for Tab, arrows inside, two choices make a span. */
async function calendar(page) {
  const grid = page.getByRole("grid").first();
  const stops = await grid.locator('button[tabindex="0"]').count();
  if (stops !== 1) problems.push(`calendar: ${stops} tab stops`);
  await grid.locator('button[tabindex="0"]').focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  const [start, end] = [await page.getByLabel("Start", { exact: true }).inputValue(), await page.getByLabel("End", { exact: true }).inputValue()];
  const hours = (Date.parse(end) - Date.parse(start)) / 3_600_000;
  if (hours !== 25) problems.push(`calendar: two choices a day apart make ${hours} hours`);
  await page.getByRole("button", { name: "Find options" }).click();
  await page.getByRole("button", { name: "Get quote" }).first().waitFor();
}

async function search(page, instances, hours) {
  await page.getByRole("link", { name: "Market" }).click();
  await page.getByRole("button", { name: /Select(ed)? h100-sxm.8x.ndr/ }).click();
  await page.getByLabel("When").selectOption("now");
  await page.getByLabel("Instances").fill(String(instances));
  await page.getByLabel("Hours").fill(String(hours));
  await page.getByRole("button", { name: "Find options" }).click();
  await page.getByRole("button", { name: "Get quote" }).first().waitFor();
}

async function quote(page) {
  await page.getByRole("button", { name: "Get quote" }).first().click();
  await page.getByRole("heading", { name: "Quote", level: 1 }).waitFor();
  await page.getByText("Expires in").waitFor();
  await page.getByRole("checkbox").first().waitFor();
}

/** What cannot be booked says why, and what to do. */
async function refusals(page) {
  await search(page, 16, 72);
  await quote(page);
  await page.getByText(/USD are missing/).waitFor();
  await page.getByRole("link", { name: /Top up, then come back/ }).waitFor();
  if (await page.getByRole("button", { name: /^Book for/ }).isEnabled()) problems.push("quote: bookable without the money");
  await page.route("**/v1/quotes/*", async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: { ...(await answer.json()), expires_at: new Date(Date.now() - 1000).toISOString() } });
  });
  await page.reload();
  await page.getByText("The quote has expired").waitFor();
  const expired = page.url();
  await page.unroute("**/v1/quotes/*");
  await page.getByRole("button", { name: "Get the same quote again" }).click();
  await page.waitForURL((url) => url.href !== expired && url.pathname.startsWith("/quotes/"));
  await page.getByText("Expires in").waitFor();
}

/** Somebody else was faster: what else there is can be quoted from here. The refusal is made up, in the server's own form. */
async function outbid(page) {
  const start = new Date(Math.ceil(Date.now() / 3_600_000 + 2) * 3_600_000), end = new Date(start.getTime() + 3_600_000);
  await page.route("**/v1/leases", (route) => route.fulfill({
    status: 409, contentType: "application/problem+json",
    body: JSON.stringify({ type: "/problems/no-capacity", title: "Conflict", status: 409, detail: "somebody else has booked what was free", facts: { options: [{ site: "sim-1", start: start.toISOString(), end: end.toISOString(), total_minor: 3984 }] } }),
  }));
  await page.getByRole("button", { name: /^Book for/ }).click();
  await page.getByText("somebody else has booked what was free").waitFor();
  await check(page, "quote-outbid");
  await page.unroute("**/v1/leases");
  const taken = page.url();
  await page.getByRole("button", { name: /^sim-1, from .* 39.84 USD$/ }).click();
  await page.waitForURL((url) => url.href !== taken && url.pathname.startsWith("/quotes/"));
  await page.getByText("reserved for this window").waitFor();
}

/** The answer to a booking gets lost; clicking again finds the lease that was booked, and books no second one. */
async function bookTwice(page) {
  let lost = 0;
  await page.route("**/v1/leases", async (route) => {
    if (route.request().method() !== "POST" || lost++ > 0) return route.continue();
    await route.fetch();
    return route.abort("connectionreset");
  });
  await page.getByRole("button", { name: /^Book for/ }).click();
  await page.getByText("The server cannot be reached").first().waitFor();
  await page.getByRole("button", { name: /^Book for/ }).click();
  await page.getByRole("heading", { name: "e2e lease", level: 1 }).waitFor();
  await page.unroute("**/v1/leases");
}

/** Tabs share one session, whose cookie may be used once only: they refresh one after another, and none is logged out. */
async function tabs(page) {
  const context = page.context();
  let under = 0, most = 0;
  await context.route("**/v1/sessions/refresh", async (route) => {
    most = Math.max(most, ++under);
    await new Promise((resolve) => setTimeout(resolve, 500)); // long enough for every tab that does not take its turn
    const answer = await route.fetch();
    under--;
    await route.fulfill({ response: answer });
  });
  const others = await Promise.all([1, 2, 3].map(() => context.newPage()));
  await Promise.all(others.map((p) => p.goto(page.url())));
  for (const p of others) {
    await p.getByRole("button", { name: "Log out" }).waitFor();
    await p.close();
  }
  await context.unroute("**/v1/sessions/refresh");
  if (most !== 1) problems.push(`tabs: ${most} refreshed at the same time`);
  await page.reload();
  await page.getByRole("button", { name: "Log out" }).waitFor();
}

async function customer(page, { url, customer }) {
  await page.goto(url);
  await page.getByRole("button", { name: "Log in" }).waitFor();
  await check(page, "login");
  await page.getByLabel("E-mail").fill(customer.email);
  await page.getByLabel("Password").fill("not the password");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").waitFor();
  await logIn(page, url, customer);
  if (await page.getByRole("link", { name: "Fleet" }).count()) problems.push("market: a customer sees the fleet");
  await page.goto(new URL("/admin/fleet", url).href);
  await page.getByRole("heading", { name: "Market", level: 1 }).waitFor();
  await tabs(page);
  await page.getByRole("link", { name: "Leases" }).click();
  await page.getByText("You have no leases yet").or(page.getByRole("table", { name: "Leases, newest first" })).waitFor();
  let leases = await row(page, "Leases, newest first", "e2e lease").count(); // of a run before, on a running instance
  await keys(page);
  await payIn(page);
  await page.getByRole("link", { name: "Market" }).click();
  await page.getByRole("button", { name: /Select(ed)? h100-sxm.8x.ndr/ }).click();
  await calendar(page);
  await check(page, "market");
  await refusals(page);

  await search(page, 2, 0.1);
  await quote(page);
  await outbid(page);
  await search(page, 2, 0.1);
  await quote(page);
  await page.getByLabel("Name", { exact: true }).fill("e2e lease");
  await check(page, "quote");
  await bookTwice(page);
  await page.getByRole("progressbar", { name: "Progress of prepare" }).waitFor();
  await page.getByText(/^prepare: \d of 2 nodes$/).waitFor();
  await page.getByRole("progressbar", { name: /^Progress of gpu-/ }).first().waitFor();
  await page.screenshot({ path: join(results, "lease-provisioning-1440.png"), fullPage: true });
  await page.getByText("ssh -p").first().waitFor({ timeout: 60_000 });
  await page.getByText("isolated", { exact: true }).first().waitFor();
  await page.getByText("GPU power, sum").waitFor({ timeout: 45_000 });
  await page.getByText("InfiniBand sent, sum").waitFor();
  await check(page, "lease");
  const lease = page.url();
  await page.getByRole("link", { name: "Billing" }).click();
  await row(page, "Holds", "e2e lease").waitFor();
  await page.goto(lease);
  await page.getByRole("button", { name: "Extend…" }).click();
  await page.getByRole("button", { name: "What would it cost?" }).click();
  await page.getByRole("button", { name: /^Extend for/ }).waitFor();
  await check(page, "lease-extend");
  await page.getByRole("button", { name: /^Extend for/ }).click();
  await page.getByText("Extended", { exact: true }).waitFor();
  await page.getByRole("button", { name: "End early…" }).click();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await page.getByRole("button", { name: "End early…" }).click();
  await page.getByRole("button", { name: "What does it cost?" }).click();
  await page.getByRole("button", { name: "End the lease now" }).click();
  await page.getByRole("heading", { name: "Wipe certificates" }).waitFor({ timeout: 90_000 });
  await row(page, "Wipe certificates", "wiped").first().waitFor();
  const file = page.waitForEvent("download");
  await row(page, "Wipe certificates", "wiped").first().getByRole("button", { name: /Download/ }).click();
  const certificate = JSON.parse(readFileSync(await (await file).path(), "utf8"));
  if (!certificate.signatures?.length) problems.push("lease: the wipe certificate is not signed");
  await check(page, "lease-closed");
  await page.getByRole("link", { name: "Invoice" }).click();
  await page.getByRole("dialog", { name: /[Ii]nvoice/ }).getByText("Payable").waitFor();
  await check(page, "invoice");
  await page.getByRole("button", { name: "Close" }).click();
  await row(page, "Invoices", "draft").first().waitFor();
  await check(page, "billing");
  await page.getByRole("link", { name: "Leases" }).click();
  await row(page, "Leases, newest first", "e2e lease").first().getByText("closed · terminated").waitFor();
  leases = await row(page, "Leases, newest first", "e2e lease").count() - leases;
  if (leases !== 1) problems.push(`leases: booking once with a lost answer made ${leases} leases`);
  await check(page, "leases");
  await page.getByLabel("Show", { exact: true }).selectOption("live");
  await page.getByText("No such leases").waitFor();
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByRole("button", { name: "Log in" }).waitFor();
}

/** A provider starts at its machines, sees nothing of who rents them, and may take one off the market and have it tested again. */
async function provider(page, { url, provider }) {
  await logIn(page, url, provider, "Fleet");
  await page.getByRole("heading", { name: /^Fabric / }).waitFor();
  if (await page.getByRole("button", { name: "Check every invariant" }).count()) problems.push("provider: sees the operator's doctor");
  await check(page, "provider");
  await page.getByRole("button", { name: /gpu-h100-16/ }).click();
  const drawer = page.getByRole("dialog", { name: "gpu-h100-16" });
  await drawer.getByRole("table", { name: "Operations" }).or(drawer.getByText("Its agent was asked nothing yet.")).waitFor();
  if (await page.getByText(/lease_[0-9a-z]{26}/).count()) problems.push("provider: sees whose lease it is");
  await drawer.getByLabel("Change its state to").selectOption("maintenance");
  if (await drawer.getByRole("option", { name: "quarantined" }).count()) problems.push("provider: is offered what only the operator may do");
  await drawer.getByLabel("Reason").fill("a new fan");
  await drawer.getByRole("button", { name: "Change the state" }).click();
  await drawer.getByText("maintenance: a new fan").waitFor();
  await check(page, "provider-node");
  await drawer.getByLabel("Change its state to").selectOption("verifying");
  await drawer.getByRole("button", { name: "Change the state" }).click();
  await drawer.getByText("available", { exact: true }).first().waitFor();
  await page.keyboard.press("Escape");
  await drawer.waitFor({ state: "hidden" });
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByRole("heading", { name: "Keys", level: 1 }).waitFor();
  await page.getByRole("link", { name: "Leasehold" }).click();
  await page.getByRole("heading", { name: "Fleet", level: 1 }).waitFor();
}

async function admin(page, { url, admin }) {
  await logIn(page, url, admin);
  await page.getByRole("link", { name: "Fleet" }).click();
  await page.getByRole("button", { name: "Check every invariant" }).click();
  await page.getByText("holds").first().waitFor({ timeout: 30_000 });
  if (await page.getByText("broken", { exact: true }).count()) problems.push("fleet: an invariant is broken");
  await page.getByRole("heading", { name: /^Fabric / }).waitFor();
  await check(page, "fleet");
  await page.getByRole("button", { name: /gpu-h100-16/ }).click();
  const drawer = page.getByRole("dialog", { name: "gpu-h100-16" });
  await drawer.getByRole("table", { name: "GPUs" }).waitFor();
  await check(page, "node");
  await drawer.getByLabel("Change its state to").selectOption("maintenance");
  await drawer.getByLabel("Reason").fill("a new fan");
  await drawer.getByRole("button", { name: "Change the state" }).click();
  await drawer.getByText("maintenance: a new fan").waitFor();
  await drawer.getByLabel("Change its state to").selectOption("available");
  await drawer.getByRole("button", { name: "Change the state" }).click();
  await drawer.getByText("available", { exact: true }).first().waitFor();
  await page.keyboard.press("Escape");
  await drawer.waitFor({ state: "hidden" });
}

const { logins, stop } = await instance();
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"],
});
let done = 0;
try {
  for (const [name, job] of [["customer", customer], ["provider", provider], ["admin", admin]]) {
    const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "light" })).newPage();
    page.setDefaultTimeout(15_000);
    page.on("response", async (r) => {
      if (r.request().isNavigationRequest() && /unsafe|\*/.test((await r.allHeaders())["content-security-policy"] ?? "*")) problems.push(`${name}: a lax policy of content at ${r.url()}`);
    });
    page.on("request", (r) => { if (!/^(blob|data):/.test(r.url()) && new URL(r.url()).origin !== new URL(logins.url).origin) problems.push(`${name}: asks another origin: ${r.url()}`); });
    page.on("console", (m) => { if (m.type() === "error" && !/40[0-9] \(|ERR_CONNECTION_RESET/.test(m.text())) problems.push(`${name}: console: ${m.text()}`); });
    page.on("pageerror", (e) => problems.push(`${name}: ${e.message}`));
    try {
      await job(page, logins);
      done++;
      console.log(`${name}: the main job is done`);
    } catch (error) {
      await page.screenshot({ path: join(results, `${name}-failed.png`), fullPage: true });
      problems.push(`${name}: ${error.message}`);
    }
  }
} finally {
  await browser.close();
  await stop();
}
for (const p of problems) console.error(`problem: ${p}`);
console.log(`${done} passed, ${problems.length} failed`);
process.exitCode = problems.length > 0 ? 1 : 0;
