// driver.mjs READER ids|all FILE…: what student.js makes of the texts on stdin, as tests/runners/test_static.py sends and reads them.
// Every second file comes as a response, in pieces of odd sizes.
import { readFileSync } from "node:fs";

const [reader, mode, ...files] = process.argv.slice(2);
const { Student, StudentError } = await import(reader);
const input = readFileSync(0);
const texts = [];
for (let at = 4; texts.length < input.readUInt32LE(0);) {
  const [role, size] = [input.readInt32LE(at), input.readInt32LE(at + 4)];
  texts.push({ role: ["text", "query", "document"][role], text: input.toString("utf16le", at + 8, at + 8 + size) });
  at += 8 + size;
}

const lines = [];
async function say(make) {
  try {
    lines.push(await make());
    return true;
  } catch (error) {
    if (!(error instanceof StudentError)) throw error;
    lines.push(`error ${error.message}`);
    return false;
  }
}
async function* pieces(bytes) {
  for (let at = 0, size = 1; at < bytes.length; at += size, size = (size * 3 + 4) % 40_009) yield bytes.subarray(at, at + size);
}

for (const [number, file] of files.entries()) {
  let student;
  const bytes = readFileSync(file);
  const opened = await say(async () => {
    student = number % 2 ? new Student(bytes) : await Student.read(new Response(ReadableStream.from(pieces(bytes))));
    return `open ${student.check().worst}`;
  });
  for (const { role, text } of opened ? texts : []) {
    await say(() => `${student.tokenize(text, role).join(" ")} | ${mode === "all" ? student.encode(text, role).join(" ") : ""}`);
  }
}
process.stdout.write(`${lines.join("\n")}\n`);
