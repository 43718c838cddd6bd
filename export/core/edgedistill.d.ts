/** What a text is: which prompt is put before it. */
export type Role = "text" | "query" | "document";

/** What is wrong with a file, a text or an option, and the way out. */
export class StudentError extends Error {}

/** A student in WebAssembly. */
export class Student {
  /** Open a student: its bytes, or where they are; `wasm` is edgedistill.wasm, by default the one beside edgedistill.js. */
  static open(
    student: string | URL | ArrayBuffer | ArrayBufferView,
    wasm?: string | URL | ArrayBuffer | ArrayBufferView | WebAssembly.Module,
  ): Promise<Student>;
  /** Of an instance of edgedistill.wasm, which becomes this student's own. */
  constructor(instance: WebAssembly.Instance, bytes: ArrayBuffer | ArrayBufferView);
  /** The dimensions that an embedding may have, the largest first; of a classifier none. */
  readonly dims: number[];
  /** The labels of a classifier, in the order of its logits; of an encoder none. */
  readonly labels: string[];
  readonly maxTokens: number;
  /** The embedding of a text, of unit length; of a classifier, its logits. */
  embed(text: string, options?: { role?: Role; dims?: number; precision?: "float32" }): Float32Array;
  embed(text: string, options: { role?: Role; dims?: number; precision: "int8" }): Int8Array;
  embed(text: string, options: { role?: Role; dims?: number; precision: "binary" }): Uint8Array;
  /** The token ids of a text, with its role's prompt and special tokens. */
  tokenize(text: string, options?: { role?: Role }): number[];
  /** Embed the golden texts of the file. */
  check(): { worst: number; least: number };
}
