/** What a text is: which prompt is put before it. */
export type Role = "text" | "query" | "document";

/** An embedding: in float32 of unit length, in a byte a dimension, or in a bit. */
export type Embedding = Float32Array | Int8Array | Uint8Array;

/** What is wrong with a file, a text or an option, and the way out. */
export class StudentError extends Error {}

/** The cosine of two embeddings, each in any precision of `embed`. */
export function similarity(a: Embedding, b: Embedding): number;

/** A student in WebAssembly. */
export class Student {
  /**
   * Open a student: its bytes, or where they are, by default student.bin beside edgedistill.js; `wasm` is edgedistill.wasm or
   * edgedistill-relaxed.wasm, by default the faster one beside edgedistill.js.
   */
  static open(
    student?: string | URL | ArrayBuffer | ArrayBufferView,
    wasm?: string | URL | ArrayBuffer | ArrayBufferView | WebAssembly.Module,
  ): Promise<Student>;
  /** Of an instance of edgedistill.wasm, which becomes this student's own. */
  constructor(instance: WebAssembly.Instance, bytes: ArrayBuffer | ArrayBufferView);
  /** What the file says of its student; golden: how many texts `check` embeds. */
  readonly about: { name: string; precision: string; languages: string[]; golden: number; space: string | null };
  /** The dimensions that an embedding may have, the largest first; of a classifier none. */
  readonly dims: number[];
  /** The labels of a classifier, in the order of its logits; of an encoder none. */
  readonly labels: string[];
  readonly maxTokens: number;
  /** Whether queries have an encoder of their own, and documents another: then a text needs one of these roles. */
  readonly isPair: boolean;
  /** The embedding of a text, of unit length; of a classifier, its logits. */
  embed(text: string, options?: { role?: Role; dims?: number; precision?: "float32" }): Float32Array;
  embed(text: string, options: { role?: Role; dims?: number; precision: "int8" }): Int8Array;
  embed(text: string, options: { role?: Role; dims?: number; precision: "binary" }): Uint8Array;
  embed(text: string, options?: { role?: Role; dims?: number; precision?: "float32" | "int8" | "binary" }): Embedding;
  /** The probability of each label of a classifier, the most probable first. */
  classify(text: string, options?: { role?: Role }): { label: string; probability: number }[];
  /** The token ids of a text, with its role's prompt and special tokens. */
  tokenize(text: string, options?: { role?: Role }): number[];
  /** Embed the golden texts of the file. */
  check(): { worst: number; least: number };
}
