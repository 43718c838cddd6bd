// EDGEDISTILL_PAGE=FOLDER node test/engines.mjs COMMAND...: what probe.html finds in a browser that the command starts with its address,
// as JSON. For browsers that playwright-core cannot drive as they are installed.
import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";

import { serve } from "../chromium.mjs";

const probe = fileURLToPath(new URL("probe.html", import.meta.url));
const { server, origin } = await serve({ "/probe.html": probe }, process.env.EDGEDISTILL_PAGE);
const [files] = server.listeners("request");
server.removeAllListeners("request").on("request", (request, response) => (request.method === "POST" ? take(request, response) : files(request, response)));
const [command, ...options] = process.argv.slice(2);
const browser = spawn(command, [...options, `${origin}/probe.html`], { stdio: "ignore", detached: true });
const late = setTimeout(() => end("no answer within two minutes", 1), 120_000);

async function take(request, response) {
  const parts = [];
  for await (const part of request) parts.push(part);
  response.end();
  end(Buffer.concat(parts).toString(), 0);
}

function end(line, code) {
  clearTimeout(late);
  console.log(line);
  process.kill(-browser.pid); // with the processes that it began
  process.exit(code);
}
