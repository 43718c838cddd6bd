// Where a bundle's files come from in a browser. What is trusted of them is decided in vendor/core/manifest.js.

import { UserError } from "./vendor/core/errors.js";
import { tooLarge } from "./vendor/core/manifest.js";

/** A bundle's files, below a URL or among Files by their path. */
export class Files {
  /** from: {url} or {files: Map of path -> File, folder: its name}. */
  constructor({ url, files, folder }) {
    this.url = url && new URL(url.endsWith("/") ? url : `${url}/`);
    this.files = files;
    this.place = url ? this.url.href.replace(/\/$/, "") : folder;
  }

  /** The bytes of a file of at most `most` bytes, null where there is none among chosen files. progress(bytes so far). */
  async read(name, most, progress = () => {}) {
    const stream = await this.#open(name);
    if (!stream) return null;
    const [parts, reader] = [[], stream.getReader()];
    let size = 0;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      size += part.value.length;
      if (size > most) {
        await reader.cancel();
        throw tooLarge(`${this.place}/${name}`, most);
      }
      parts.push(part.value);
      progress(size);
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  }

  async #open(name) {
    if (this.files) return this.files.get(name)?.stream();
    const url = new URL(name, this.url);
    const response = await fetch(url, { cache: "no-cache" }).catch(() => null);
    if (!response) throw new UserError(`${url}: no answer; check the address, and that its server allows other pages to read it (CORS)`);
    if (!response.ok) throw new UserError(`${url}: not there (HTTP ${response.status}); give the address of a bundle's folder`);
    return response.body;
  }
}
