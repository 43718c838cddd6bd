/** The command: lines in, JSON arrays out, and exit codes that a script can rely on. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import path from "node:path";
import { test } from "node:test";

import { load } from "../index.js";
import { BUNDLE, copyBundle, DIMS, dot, GOLDEN, MANIFEST, readJson, rewrite } from "./bundles.js";

const NO_BUNDLE =
  "nowhere: not a bundle (no manifest.json); give the folder of one (of a shipped bundle, edgedistill verify NAME in Python prints it)";

function run(args, input = "") {
  const { status, stdout, stderr } = spawnSync(process.execPath, [path.join(import.meta.dirname, "..", "cli.js"), ...args], {
    input,
    encoding: "utf8",
    maxBuffer: 2 ** 27,
  });
  return { status, stdout, stderr };
}

test("a line of text becomes a line of JSON, whatever ends the lines", async () => {
  const { status, stdout, stderr } = run([BUNDLE], "\ufeffa text\r\n\nline\u2028separator\nlast");
  assert.deepEqual([status, stderr], [0, ""]);
  const rows = stdout
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line));
  const expected = await (await load(BUNDLE)).encode(["a text", "", "line\u2028separator", "last"]);
  assert.equal(rows.length, expected.length);
  rows.forEach((row, at) => assert.ok(Math.abs(dot(row, expected[at]) - 1) < 1e-5, `line ${at + 1}`));
  assert.deepEqual(run([BUNDLE]), { status: 0, stdout: "", stderr: "" });
});

test("more lines than are embedded at a time", () => {
  const { stdout } = run([BUNDLE], "one\n".repeat(1500) + "two\n");
  const rows = stdout.split("\n").slice(0, -1);
  assert.equal(rows.length, 1501);
  assert.notEqual(rows[0], rows[1500]);
});

test("--dim cuts", (t) => {
  const folder = copyBundle(t);
  rewrite(folder, "manifest.json", { dims: [DIMS, 8] });
  assert.equal(JSON.parse(run([folder, "--dim", "8"], "a text\n").stdout).length, 8);
  const { status, stderr } = run([folder, "--dim", "9"], "a text\n");
  assert.deepEqual([status, stderr], [2, `dim=9: ${MANIFEST.name} was trained for ${DIMS}, 8 dimensions; choose one of these\n`]);
});

test("--check and --time, for people and for programs", () => {
  const people = run([BUNDLE, "--check"]);
  assert.equal(people.status, 0);
  assert.match(
    people.stdout,
    new RegExp(`: OK, ${GOLDEN.texts.length} golden texts match \\(worst cosine \\d\\.\\d{5}, at least \\d\\.\\d+\\)\n$`),
  );
  const { status, stdout } = run([BUNDLE, "--check", "--time", "--threads", "1", "--json"]);
  assert.equal(status, 0);
  const found = JSON.parse(stdout);
  assert.deepEqual([found.bundle, found.threads, found.texts, found.batch_texts], [BUNDLE, 1, GOLDEN.texts.length, 128]);
  assert.ok(found.p50_ms > 0 && found.p90_ms >= found.p50_ms);
  assert.ok(found.rate_texts_s > 0 && found.query_tokens > 2 && found.batch_tokens_mean > found.query_tokens);
});

test("a failed check exits with 1", (t) => {
  const folder = copyBundle(t);
  const { ids } = readJson(folder, "parity.json");
  ids[5][0] += 1;
  rewrite(folder, "parity.json", { ids });
  const { status, stdout, stderr } = run([folder, "--check", "--json"]);
  assert.equal(status, 1);
  assert.match(stderr, /: text 6 of .*: token ids differ/);
  const { error, cosine_min } = JSON.parse(stdout);
  assert.equal(`${error}\n`, stderr);
  assert.ok(cosine_min > 0.9);
});

test("what the user can fix exits with 2", () => {
  for (const [args, input, message] of [
    [[], "", "BUNDLE: 0 given; give one folder (edgedistill --help)"],
    [["a", "b"], "", "BUNDLE: 2 given; give one folder (edgedistill --help)"],
    [[BUNDLE, "--nothing"], "", "Unknown option '--nothing'; see edgedistill --help"],
    [[BUNDLE, "--threads", "0"], "", "--threads 0: not a whole number above 0; give one"],
    [[BUNDLE, "--dim", "1e2"], "", "--dim 1e2: not a whole number above 0; give one"],
    [["nowhere"], "", NO_BUNDLE],
    [[BUNDLE], Buffer.from("good\nfine\nbad \xff\n", "latin1"), "stdin: line 3: not UTF-8; convert the file first"],
    [[BUNDLE], Buffer.alloc(1_500_000, "x"), "stdin: line 1: longer than 1 MB; give one text per line"],
  ]) {
    const { status, stdout, stderr } = run([...args], input);
    assert.deepEqual([status, stdout, stderr], [2, "", `${message}\n`]);
  }
  const { status, stdout } = run(["nowhere", "--json"]);
  assert.deepEqual([status, JSON.parse(stdout)], [2, { error: NO_BUNDLE }]);
});

test("--help and --version", () => {
  assert.match(run(["--help"]).stdout, /^Usage: edgedistill BUNDLE/);
  assert.equal(run(["--version"]).stdout, `${readJson(path.join(import.meta.dirname, ".."), "package.json").version}\n`);
});

test("--embeddings takes fewer bytes", async () => {
  const [expected] = await (await load(BUNDLE)).encode(["a text"], { precision: "binary" });
  assert.deepEqual(JSON.parse(run([BUNDLE, "--embeddings", "binary"], "a text\n").stdout), [...expected]);
  const { status, stderr } = run([BUNDLE, "--embeddings", "int4"], "a text\n");
  assert.deepEqual([status, stderr], [2, "precision: no precision of embeddings 'int4'; choose float32, int8, binary\n"]);
});
