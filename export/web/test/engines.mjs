// EDGEDISTILL_PAGE=FOLDER node test/engines.mjs firefox|webkit: what probe.html finds in a browser that playwright-core cannot drive as it is
// installed; exit 1 where it is not what Chromium finds, 3 where the browser is missing.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { Student } from "../../core/edgedistill.js";
import { serve } from "../chromium.mjs";

const home = mkdtempSync(join(tmpdir(), "edgedistill-engines-"));
const COMMANDS = {
  firefox: ["/usr/bin/firefox-esr", "--headless", "--no-remote", "--profile", home],
  webkit: ["/usr/bin/xvfb-run", "-a", "/usr/lib/x86_64-linux-gnu/webkit2gtk-4.1/MiniBrowser"], // Debian's libwebkit2gtk-4.1-0
};
const command = COMMANDS[process.argv[2]];
const missing = command.find((part) => part.startsWith("/usr/") && !existsSync(part));
if (missing) {
  process.stderr.write(`needs ${missing}`);
  process.exit(3);
}
const page = process.env.EDGEDISTILL_PAGE;
const { server, origin } = await serve({ "/probe.html": fileURLToPath(new URL("probe.html", import.meta.url)) }, page);
const [files] = server.listeners("request");
const told = new Promise((resolve) => {
  server.removeAllListeners("request").on("request", async (request, response) => {
    if (request.method !== "POST") return files(request, response);
    const parts = [];
    for await (const part of request) parts.push(part);
    response.end();
    resolve(JSON.parse(Buffer.concat(parts)));
  });
});
const late = new Promise((resolve) => setTimeout(resolve, 120_000, { error: "no answer within two minutes" }));
const env = { ...process.env, HOME: home, WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS: "1" }; // which a container has no place for
const browser = spawn(command[0], [...command.slice(1), `${origin}/probe.html`], { stdio: "ignore", detached: true, env });
const { row, ...found } = await Promise.race([told, late]);
process.kill(-browser.pid); // with the processes that it began
rmSync(home, { recursive: true, force: true, maxRetries: 9 });
console.log(JSON.stringify(found));
const nano = await Student.open(readFileSync(join(page, "students/nano.bin")));
assert.deepEqual(row, [...nano.embed("a cat")]);
for (const { worst, least } of found.checks) assert.ok(worst >= least);
assert.deepEqual([found.results, found.ended], [8, "encoder: closed; load it again"]);
assert.match(found.refused, /not a student's file/);
process.exit(0);
