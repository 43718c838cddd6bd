// The files of a dropped folder, by their path.

import { StudentError } from "./encoder.js";

const MOST_FILES = 500; // a folder of texts may have
const DEEPEST = 4;

/** A Map of path -> File of what was dropped; to be called during the drop event. Raises StudentError for none, and for more files than the page takes. */
export async function droppedFiles(transfer) {
  const entries = Array.from(transfer.items, (item) => item.webkitGetAsEntry?.()).filter(Boolean); // gone after the event
  const files = new Map(entries.length ? [] : Array.from(transfer.files, (file) => [file.name, file]));
  const waiting = entries.map((entry) => ({ entry, path: entry.name, depth: 0 }));
  for (const { entry, path, depth } of waiting) {
    if (files.size > MOST_FILES) {
      throw new StudentError(`${entries[0].name}: more than ${MOST_FILES} files; drop a part of it, or a student's file`);
    }
    if (entry.isFile) files.set(path, await new Promise((resolve, reject) => entry.file(resolve, reject)));
    const inside = entry.isDirectory && depth < DEEPEST ? await children(entry) : [];
    waiting.push(...inside.map((child) => ({ entry: child, path: `${path}/${child.name}`, depth: depth + 1 })));
  }
  if (!files.size) throw new StudentError(`${entries[0]?.name ?? "nothing"}: the folder is empty; drop a text file, or a student's file`);
  return files;
}

/** All entries of a folder; the reader hands them out in portions. */
async function children(folder) {
  const reader = folder.createReader();
  const found = [];
  for (;;) {
    const portion = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!portion.length) return found;
    found.push(...portion);
  }
}
