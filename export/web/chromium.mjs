// Chromium and a server of static files, for tests and measurements of this page.
import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".wasm": "application/wasm", ".md": "text/plain; charset=utf-8" };

/** {server, origin} of `mounts`, path -> a file or folder, and of a page that was exported, by default of this one with the core beside it. */
export async function serve(mounts = {}, page = undefined) {
  const all = () => ({ ...mounts, ...(page ? { "/": page } : { "/core/": here("../core"), "/": here(".") }) });
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const [prefix, place] = Object.entries(all()).find(([each]) => path === each || (each.endsWith("/") && path.startsWith(each)));
    const file = path === prefix && prefix !== "/" ? place : resolve(place, path.slice(prefix.length) || "index.html");
    const status = file.startsWith(resolve(place)) && !file.includes(`..${sep}`) && statSync(file, { throwIfNoEntry: false });
    if (!status || !status.isFile()) return response.writeHead(404).end();
    response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream", "Content-Length": status.size, "Cache-Control": "no-cache" });
    createReadStream(file).pipe(response);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { server, origin: `http://localhost:${server.address().port}` };
}

/** Headless Chromium: $CHROMIUM, else the one on the path. */
export async function launch() {
  const { chromium } = await import("playwright-core");
  const args = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"];
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args });
}

