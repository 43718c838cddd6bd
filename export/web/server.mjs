// npm start [-- BUNDLE]: serve the page, and a bundle's folder below /bundle/, on this machine alone. $PORT: 8000 by default.
// The two Cross-Origin headers let WASM use threads; any server that sends them will do.

import { createReadStream, readFileSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";

import { languagesOf } from "../node/core/manifest.js";

const PAGE = fileURLToPath(new URL(".", import.meta.url));
const SHIPPED = ["../../edgedistill/shipped/bundles/", "../../bundles/"] // in a checkout, in the installed package
  .map((folder) => fileURLToPath(new URL(folder, import.meta.url)))
  .find((folder) => statSync(join(folder, "scores.json"), { throwIfNoEntry: false }));
const TYPES = {
  html: "text/html; charset=utf-8",
  js: "text/javascript",
  mjs: "text/javascript",
  css: "text/css",
  json: "application/json",
  md: "text/plain; charset=utf-8",
  wasm: "application/wasm",
};
const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cache-Control": "no-cache",
};

/** A server of the page at /, of the bundles that ship below /shipped/, and of each folder of `mounts` ({"/bundle/": folder}) at its path. */
export function serve(mounts = {}, headers = HEADERS) {
  const shipped = SHIPPED ? { "/shipped/": SHIPPED } : {};
  return createServer((request, response) => {
    const path = decoded(request.url.split("?")[0]);
    if (path === "/shipped/index.json") {
      return response.writeHead(200, { ...headers, "Content-Type": TYPES.json }).end(JSON.stringify(listed()));
    }
    const [mount, root] = Object.entries({ ...shipped, ...mounts }).find(([prefix]) => path.startsWith(prefix)) ?? ["/", PAGE];
    const file = resolve(root, path.slice(mount.length) || "index.html");
    const found = file.startsWith(resolve(root) + sep) && status(file);
    if (!found || !found.isFile()) return response.writeHead(404, headers).end();
    response.writeHead(200, {
      ...headers,
      "Content-Type": TYPES[extname(file).slice(1)] ?? "application/octet-stream",
      "Content-Length": found.size,
    });
    createReadStream(file).pipe(response);
  });
}

const WORDS = { nano: "finds best in English", micro: "smallest and fastest, in English", multi: "across languages" }; // as README recommends them

/** The bundles that ship: [{name, word: what it is for, languages, size_bytes: of the graph}]. */
function listed() {
  const read = (file) => JSON.parse(readFileSync(join(SHIPPED, file), "utf8"));
  const names = SHIPPED ? Object.keys(read("scores.json")) : [];
  return names.map((name) => {
    const manifest = read(`${name}/manifest.json`);
    const [{ size_bytes }] = Object.values(manifest.precisions);
    return { name, word: WORDS[name], languages: languagesOf(manifest), size_bytes };
  });
}

/** What statSync finds; undefined also below a file, and for a name that no file can have. */
function status(file) {
  try {
    return statSync(file);
  } catch {
    return undefined;
  }
}

function decoded(path) {
  try {
    return decodeURIComponent(path);
  } catch {
    return "/malformed/";
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const bundle = process.argv[2];
  const port = Number(process.env.PORT ?? 8000);
  if (process.argv.length > 3 || (bundle && !statSync(join(bundle, "manifest.json"), { throwIfNoEntry: false }))) {
    const wayOut = "give the folder of one (of a shipped bundle, edgedistill verify NAME in Python prints it)";
    console.error(`${process.argv.slice(2).join(" ")}: not a bundle (no manifest.json); ${wayOut}`);
    process.exit(2);
  }
  const server = serve(bundle ? { "/bundle/": resolve(bundle) } : {});
  server.on("error", (error) => {
    console.error(`port ${port}: ${error.code === "EADDRINUSE" ? "in use" : error.message}; choose another with PORT=8001`);
    process.exit(2);
  });
  server.listen(port, "127.0.0.1", () => {
    console.log(`http://localhost:${server.address().port}/${bundle ? "?bundle=/bundle/" : ""}`);
  });
}
