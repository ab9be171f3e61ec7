// The portal's main job in a real browser, against everything real but hardware: log in, top up, quote, book, follow to active, see the
// SSH command, the bill, and the admin's fleet; axe on every page; no console errors; screenshots at 360 and 1440 px in test-results.
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
  if (process.env.LEASEHOLD_URL) return { logins: JSON.parse(readFileSync(process.env.LEASEHOLD_LOGINS, "utf8")), stop: async () => {} };
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

async function check(page, name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run({ runOnly: ["wcag2a", "wcag2aa"] }));
  for (const v of violations.filter((v) => ["serious", "critical"].includes(v.impact))) {
    problems.push(`${name}: axe: ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ")).join(", ")}`);
  }
  for (const width of [360, 1440]) {
    await page.setViewportSize({ width, height: 900 });
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))); // charts follow a frame later
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (wide > 0) problems.push(`${name}: ${wide} px too wide at ${width} px`);
    await page.screenshot({ path: join(results, `${name}-${width}.png`), fullPage: true });
  }
}

async function logIn(page, url, { email, password }) {
  await page.goto(url);
  await page.getByLabel("E-mail").fill(email);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Market", level: 1 }).waitFor();
}

async function customer(page, { url, customer }) {
  await page.goto(url);
  await page.getByRole("button", { name: "Log in" }).waitFor();
  await check(page, "login");
  await logIn(page, url, customer);
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByLabel("Name of the key").fill("e2e");
  await page.getByLabel("Public key").fill(publicKey());
  await page.getByRole("button", { name: "Add SSH key" }).click();
  await page.getByRole("cell", { name: "e2e", exact: true }).first().waitFor();
  await check(page, "keys");

  await page.getByRole("link", { name: "Billing" }).click();
  await page.getByLabel("Amount in USD").fill("250.00");
  await page.getByRole("button", { name: "Pay in" }).click();
  await page.getByText("250.00 USD were paid in").waitFor();
  await page.getByLabel("Test card").selectOption("pm_card_chargeDeclined");
  await page.getByRole("button", { name: "Pay in" }).click();
  await page.getByText("The card was refused").waitFor();

  await page.getByRole("link", { name: "Market" }).click();
  await page.getByRole("button", { name: "Select h100-sxm.8x.ndr" }).or(page.getByRole("button", { name: "Selected h100-sxm.8x.ndr" })).click();
  await page.getByText("Choose an hour to start there").waitFor();
  await page.getByLabel("Instances").fill("2");
  await page.getByLabel("Hours").fill("0.1");
  await page.getByRole("button", { name: "Find options" }).click();
  await page.getByRole("button", { name: "Get quote" }).first().waitFor();
  await check(page, "market");
  await page.getByRole("button", { name: "Get quote" }).first().click();
  await page.getByRole("heading", { name: "Quote", level: 1 }).waitFor();
  await page.getByText("Expires in").waitFor();
  await page.getByRole("checkbox").first().waitFor();
  await check(page, "quote");
  await page.getByRole("button", { name: /^Book for/ }).click();

  await page.getByText("ssh -p").first().waitFor({ timeout: 60_000 });
  await page.getByText("isolated", { exact: true }).first().waitFor();
  await page.getByText("GPU power, mean").waitFor({ timeout: 45_000 });
  await check(page, "lease");
  await page.getByRole("button", { name: "What would it cost?" }).click();
  await page.getByRole("button", { name: /^Extend for/ }).click();
  await page.getByText("Extended").first().waitFor();
  await page.getByRole("button", { name: "End early…" }).click();
  await page.getByRole("button", { name: "End the lease now" }).click();
  await page.getByRole("heading", { name: "Wipe certificates" }).waitFor({ timeout: 90_000 });
  await page.getByText("wiped", { exact: true }).first().waitFor();
  await check(page, "lease-closed");
  await page.getByRole("link", { name: "Leases" }).click();
  await page.getByText("closed · terminated").waitFor();
  await check(page, "leases");
  await page.getByRole("link", { name: "Billing" }).click();
  await page.getByRole("cell", { name: "draft" }).first().waitFor();
  await check(page, "billing");
}

async function admin(page, { url, admin }) {
  await logIn(page, url, admin);
  await page.getByRole("link", { name: "Fleet" }).click();
  await page.getByRole("button", { name: /gpu-h100-01/ }).click();
  await page.getByRole("heading", { name: "gpu-h100-01" }).waitFor();
  await page.getByRole("button", { name: "Check every invariant" }).click();
  await page.getByText("holds").first().waitFor({ timeout: 30_000 });
  if (await page.getByText("broken", { exact: true }).count()) problems.push("fleet: an invariant is broken");
  await check(page, "fleet");
}

const { logins, stop } = await instance();
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"],
});
let done = 0;
try {
  for (const [name, job] of [["customer", customer], ["admin", admin]]) {
    const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 } })).newPage();
    page.setDefaultTimeout(15_000);
    page.on("console", (m) => { if (m.type() === "error" && !/40[0-9] \(/.test(m.text())) problems.push(`${name}: console: ${m.text()}`); });
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
