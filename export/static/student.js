/**
 * Reads a static student from one file, in Node and in browsers, without any library; README.md beside this has the format.
 *
 *     const student = await Student.read(await fetch("student.bin")); // in Node: new Student(readFileSync("student.bin"))
 *     student.encode("how do I reset it?"); // Float32Array of student.dims numbers, of unit length
 */

const MAGIC = "edstudnt";
const VERSION = 3;
const START = 16; // bytes: magic, version, CRC-32 of all that follows
const NAMES = "size tokens width dims biases tanh maxTokens longestWord unknown before after added runs letters golden".split(" ");
const LIMITS = { tokens: 1 << 24, width: 1 << 16, dims: 1 << 16, longestWord: 1000, maxTokens: 1 << 24 };
const HANGUL = 3; // a run of characters is 0: removed, 1: spaces, 2: alone, 3: these; above stands the first one's letter
const SEQUENCE = 21; // bits of a letter, or of a place in `letters` where above them stands how many they are
const LAST = 0x10ffff;
const CENTROIDS = 256; // at most: a code is a byte
const ROLES = ["text", "query", "document"];
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** A file that is not a whole and sound student, or a text that has no embedding. */
export class StudentError extends Error {}

const ENDS = "get the file again, or export it again";
function require(holds, fact = "its sizes do not fit together") {
  if (!holds) throw new StudentError(`damaged: ${fact}; ${ENDS}`);
}

/** A student that is read from the bytes of a file. Throws a StudentError for any other bytes. */
export class Student {
  #bytes;
  #view;
  #at = START;
  #become = new Map(); // by character
  #header = {};

  /** From a Response, as fetch gives it: the checksum is computed while the bytes arrive. */
  static async read(response) {
    const { ok, body, url, status } = response;
    if (!ok || !body) throw new StudentError(`${url}: the server answered ${status}; check the address`);
    const [stream, chunks] = [body.getReader(), []];
    let [size, checksum] = [0, -1];
    for (let chunk = await stream.read(); !chunk.done; chunk = await stream.read()) {
      checksum = crc32(checksum, chunk.value.subarray(Math.min(Math.max(START - size, 0), chunk.value.length)));
      chunks.push(chunk.value);
      size += chunk.value.length;
    }
    const bytes = new Uint8Array(size);
    for (const chunk of chunks.reverse()) bytes.set(chunk, (size -= chunk.length));
    return new Student(bytes, checksum);
  }

  /** data: an ArrayBuffer or a Uint8Array. checksum: what `crc32` found of all behind the start, where that is known. */
  constructor(data, checksum) {
    const bytes = (this.#bytes = data instanceof Uint8Array ? data : new Uint8Array(data));
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    if (String.fromCharCode(...bytes.subarray(0, MAGIC.length)) !== MAGIC) throw new StudentError(`not a student file; ${ENDS}`);
    require(bytes.length >= START + 4 * NAMES.length, "cut off");
    if (this.#view.getUint32(8, true) !== VERSION) {
      throw new StudentError("another version of the format; get a reader of that version, or export again");
    }
    const numbers = this.#integers(NAMES.length);
    const h = (this.#header = Object.fromEntries(NAMES.map((name, at) => [name, numbers[at]])));
    require(h.size === bytes.length, "cut off");
    require(this.#view.getUint32(12, true) === ~(checksum ?? crc32(-1, bytes.subarray(START))) >>> 0, "its checksum is wrong");
    require(Object.entries(LIMITS).every(([name, most]) => h[name] > 0 && h[name] <= most));
    require([0, h.dims].includes(h.biases) && Math.min(...numbers.slice(9)) >= 0);
    require(h.unknown >= 0 && h.unknown < h.tokens && h.before + h.after < h.maxTokens);
    [this.dims, this.maxTokens] = [h.dims, h.maxTokens];
    [this.before, this.after] = [this.#integers(h.before), this.#integers(h.after)];
    [this.runs, this.letters] = [this.#integers(3 * h.runs), this.#integers(h.letters)];
    require(this.#soundRuns());
    const biases = this.#take(4 * h.biases);
    this.biases = Float32Array.from({ length: h.biases }, (_, at) => this.#view.getFloat32(biases + 4 * at, true));
    [this.table, this.head] = [this.#matrix(), this.#matrix()];
    const { table, head } = this;
    require((table.codes || table.rows === h.tokens) && !head.codes && (head.rows || h.width) === h.dims);
    this.weights = table.codes ? this.#take(2 * h.tokens) : 0; // where they start
    const tokens = this.#text().split("\0");
    require(tokens.length === h.tokens);
    this.ids = new Map();
    for (let id = 0; id < tokens.length; id++) if (tokens[id]) this.ids.set(tokens[id], id);
    this.prompts = ROLES.map(() => this.#text());
    this.prefix = this.#text();
    const pair = (_, at, number = this.#integers(1)[0]) => [this.#text(), number];
    this.added = new Map(Array.from({ length: h.added }, pair));
    const pattern = [...this.added.keys()].map((token) => token.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&").replaceAll("\\-", "\\x2D"));
    this.pattern = new RegExp(`(${pattern.join("|") || "(?!)"})`, "u"); // the longest come first
    this.golden = Array.from({ length: h.golden }, (_, at) => [...pair(_, at), this.#take(2 * h.dims)]);
    require(this.golden.every(([, role]) => role >= 0 && role < ROLES.length));
    require(this.#at === bytes.length && !this.added.has(""));
    require([...this.before, ...this.after, ...this.added.values()].every((id) => id >= 0 && id < h.tokens));
  }

  /** The token ids of a text, with the prompt of its role ("text", "query" or "document") and special tokens, truncated. */
  tokenize(text, role = "text") {
    if (typeof text !== "string") throw new StudentError("text: not a string; give one");
    if (/\p{Surrogate}/u.test(text)) throw new StudentError("text: half a surrogate pair, which is not text; decode it again");
    if (!ROLES.includes(role)) throw new StudentError(`role: none of ${ROLES.join(", ")}; choose one of these`);
    const room = this.maxTokens - this.before.length - this.after.length;
    const found = [];
    for (const [at, part] of (this.prompts[ROLES.indexOf(role)] + text).split(this.pattern).entries()) {
      if (at % 2) found.push(this.added.get(part));
      else for (const word of this.#words(part)) if (found.length < room) found.push(...this.#word(word));
    }
    const ids = [...this.before, ...found.slice(0, room), ...this.after];
    if (!ids.length) throw new StudentError("text: has no tokens; leave it out");
    return ids;
  }

  /** The embedding of a text: Float32Array of unit length. */
  encode(text, role = "text") {
    const { width, dims } = this.#header;
    const ids = this.tokenize(text, role);
    const mean = new Float64Array(width);
    for (const id of ids) {
      const weight = (this.weights ? this.#half(this.weights + 2 * id) : 1) / ids.length;
      for (let j = 0; j < width; j++) mean[j] += weight * this.#value(this.table, id, j);
    }
    const found = this.head.rows ? new Float64Array(dims) : mean;
    for (let at = 0; at < this.head.rows; at++) {
      for (let j = 0; j < width; j++) found[at] += this.#value(this.head, at, j) * mean[j];
    }
    this.biases.forEach((bias, at) => (found[at] += bias));
    if (this.#header.tanh) found.forEach((value, at) => (found[at] = Math.tanh(value)));
    const length = Math.sqrt(found.reduce((sum, value) => sum + value * value, 0));
    require(Number.isFinite(length), "an embedding that is not finite");
    return Float32Array.from(found, (value) => value / Math.max(length, 1e-12));
  }

  /** {texts, worst}: how many golden texts there are, and the lowest cosine of one's embedding to the stored one. */
  check() {
    const cosines = this.golden.map(([text, role, start]) => {
      const stored = Float64Array.from({ length: this.dims }, (_, at) => this.#half(start + 2 * at));
      const square = stored.reduce((sum, value) => sum + value * value, 0);
      return this.encode(text, ROLES[role]).reduce((sum, value, at) => sum + value * stored[at], 0) / Math.max(Math.sqrt(square), 1e-12);
    });
    return { texts: cosines.length, worst: Math.min(1, ...cosines) };
  }

  /** Where the next bytes start. */
  #take(size) {
    require(size >= 0 && size <= this.#bytes.length - this.#at);
    this.#at += size;
    return this.#at - size;
  }

  #integers(count) {
    const start = this.#take(4 * count);
    return Array.from({ length: count }, (_, at) => this.#view.getInt32(start + 4 * at, true));
  }

  #text() {
    const [size] = this.#integers(1);
    const start = this.#take(size);
    try {
      return UTF8.decode(this.#bytes.subarray(start, start + size));
    } catch {
      throw new StudentError(`damaged: a text that is not UTF-8; ${ENDS}`);
    }
  }

  #half(at) {
    const bits = this.#view.getUint16(at, true);
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const value = exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24;
    return bits & 0x8000 ? -value : value;
  }

  /** Rows of their own, or centroids, which PQ codes of every token select. */
  #matrix() {
    const { tokens, width } = this.#header;
    const [rows, codes, bits, group, exponent] = this.#integers(5);
    require([4, 8].includes(bits) && group > 0 && group <= width && Math.abs(exponent) <= 64);
    require(codes >= 0 && codes <= width && rows <= (codes ? CENTROIDS : LIMITS.tokens));
    const start = this.#take(tokens * codes);
    let most = -1;
    if (rows < CENTROIDS) for (let at = start; at < this.#at; at++) most = Math.max(most, this.#bytes[at]);
    require(most < rows);
    const [groups, bytes] = [Math.ceil(width / group), Math.ceil((width * bits) / 8)]; // of a row
    const [first, scales] = [this.#take(2 * rows * groups), new Float64Array(rows * groups)];
    for (let at = 0; at < scales.length; at++) scales[at] = 2 ** exponent * this.#half(first + 2 * at);
    return { rows, codes, bits, group, groups, bytes, start, scales, values: this.#take(rows * bytes) };
  }

  /** Component j of a matrix' row, or of the one that a token's PQ codes select: j is of block j mod codes. */
  #value({ rows, codes, bits, group, groups, bytes, start, scales, values }, at, j) {
    if (!rows) return 0;
    const row = codes ? this.#bytes[start + at * codes + (j % codes)] : at;
    const byte = this.#bytes[values + row * bytes + (bits === 8 ? j : j >> 1)];
    const value = bits === 8 ? byte - 128 : ((byte >> (4 * (j & 1))) & 15) - 8;
    return value * scales[row * groups + Math.floor(j / group)];
  }

  /** Whether the runs are in order, and all that they become are characters. */
  #soundRuns() {
    const { runs, letters } = this;
    for (let at = 0, before = -1; at < runs.length; before = runs[at + 1], at += 3) {
      const [first, last, to] = runs.slice(at, at + 3);
      const count = to >> SEQUENCE;
      const beyond = count ? (to & ((1 << SEQUENCE) - 1)) + count - letters.length : to + last - first - LAST;
      if (first <= before || last < first || last > LAST || to < 0 || beyond > 0) return false;
      if (to === HANGUL && (first < 0xac00 || last > 0xd7a3)) return false;
    }
    return letters.every((letter) => letter >= 0 && letter <= LAST);
  }

  /** [first character, what it becomes] of the run that holds a character; [code, -1] where it stays. */
  #run(code) {
    const { runs } = this;
    let [low, high] = [0, runs.length / 3];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (runs[3 * middle] <= code) low = middle + 1;
      else high = middle;
    }
    const at = 3 * (low - 1);
    return at >= 0 && code <= runs[at + 1] ? [runs[at], runs[at + 2]] : [code, -1];
  }

  #lettersOf(code) {
    const [first, to] = this.#run(code);
    if (to === HANGUL) return Array.from(String.fromCodePoint(code).normalize("NFD"), (letter) => letter.codePointAt(0));
    const [count, place] = [to < 0 ? 0 : to >> SEQUENCE, to & ((1 << SEQUENCE) - 1)];
    if (count) return this.letters.slice(place, place + count);
    return [to > HANGUL ? to + code - first : code];
  }

  /** The words of a text, as the tokenizer normalizes and splits it. */
  #words(text) {
    let found = "";
    for (const character of text) {
      let parts = this.#become.get(character);
      if (parts === undefined) {
        const letters = this.#lettersOf(character.codePointAt(0)).map((code) => [String.fromCodePoint(code), this.#run(code)[1]]);
        parts = letters.map(([letter, to]) => ["", " ", ` ${letter} `][to] ?? letter).join("");
        this.#become.set(character, parts);
      }
      found += parts;
    }
    return found.split(" ");
  }

  /** The longest token that begins the word, then the longest that goes on, and so to its end. */
  #word(word) {
    const [found, unknown] = [[], [this.#header.unknown]];
    if (word.length > this.#header.longestWord && [...word].length > this.#header.longestWord) return unknown;
    for (let start = 0; start < word.length;) {
      const prefix = start ? this.prefix : "";
      let end = word.length;
      while (end > start && !this.ids.has(prefix + word.slice(start, end))) end--;
      if (end === start) return unknown;
      found.push(this.ids.get(prefix + word.slice(start, end)));
      start = end;
    }
    return found;
  }
}

// Of a byte, and of one that 1, 2 or 3 others follow: four bytes at a time take a third of the time.
const CRC = Array.from({ length: 4 }, () => new Int32Array(256));
for (let byte = 0; byte < 256; byte++) {
  for (let table = 0, rest = byte; table < CRC.length; table++) {
    for (let bit = 0; bit < 8; bit++) rest = rest & 1 ? 0xedb88320 ^ (rest >>> 1) : rest >>> 1;
    CRC[table][byte] = rest;
  }
}

/** The CRC-32, not yet inverted, of bytes that follow those of `found`. */
function crc32(found, bytes) {
  const [one, two, three, four] = CRC;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  for (; at + 4 <= bytes.length; at += 4) {
    found ^= view.getInt32(at, true);
    found = four[found & 255] ^ three[(found >>> 8) & 255] ^ two[(found >>> 16) & 255] ^ one[found >>> 24];
  }
  for (; at < bytes.length; at++) found = one[(found ^ bytes[at]) & 255] ^ (found >>> 8);
  return found;
}
