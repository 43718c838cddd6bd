/** Something the caller can fix. The message reads *place: fact; way out*. */
export class UserError extends Error {
  name: "UserError";
}

/** A file or an embedding is not the one that was exported. */
export class CheckFailed extends Error {
  name: "CheckFailed";
  /** The measured values; empty for a missing or changed file. */
  details: Partial<CheckResult>;
}

export interface LoadOptions {
  /** One that the bundle has; by default the fastest, by the manifest's rank. */
  precision?: string;
  /** Threads of onnxruntime; by default the processors that this process may use. */
  threads?: number;
}

/** The precisions of embeddings, and the array that each comes in: int8 takes a byte for each dimension, binary a bit. */
export interface Embeddings {
  float32: Float32Array;
  int8: Int8Array;
  binary: Uint8Array;
}

export interface EncodeOptions<P extends keyof Embeddings = "float32"> {
  /** The dimensions to return, one of `dims`; by default the largest. */
  dim?: number;
  /** Tokens per batch with padding, by default 512. */
  batchTokens?: number;
  /** Of the embeddings, by default float32. That of the graph is chosen by `load`. */
  precision?: P;
  /** What the texts are, by default "text": which of the bundle's prompts is put before them. */
  role?: Role;
}

export type Role = "text" | "query" | "document";

export interface CheckResult {
  /** How many golden texts were compared. */
  texts: number;
  /** The lowest cosine to an embedding stored at export. */
  cosine_min: number;
  /** The lowest cosine that the precision allows. */
  threshold: number;
}

/** manifest.json, as far as this runner reads it. */
export interface Manifest {
  schema: number;
  name: string;
  kind: string;
  dims: number[];
  max_tokens: number;
  prompt: string;
  query_prompt?: string;
  document_prompt?: string;
  pad_id?: number;
  output: string;
  precisions: Record<string, { file: string; parity: { threshold: number; [key: string]: unknown }; [key: string]: unknown }>;
  files: Record<string, string>;
  [key: string]: unknown;
}

/**
 * Open a bundle after checking the sha256 of every file that it reads.
 *
 * Rejects with UserError for a folder that is no encoder's bundle or not safe to open, and with CheckFailed for a missing or changed file.
 */
export function load(folder: string, options?: LoadOptions): Promise<Bundle>;

/** The cosine of two embeddings, each in any precision of `encode`. */
export function similarity(a: Embeddings[keyof Embeddings], b: Embeddings[keyof Embeddings]): number;

/** An encoder opened in one precision by `load`. */
export class Bundle {
  private constructor();
  readonly folder: string;
  readonly manifest: Manifest;
  readonly precision: string;
  /** The dimensions of its embeddings; of a Matryoshka student all that it was trained for, the largest first. */
  readonly dims: number[];
  /** Longer texts are truncated to this many tokens. */
  readonly maxTokens: number;

  /** Embed a text: a Float32Array of unit length, or the array of another precision. */
  encode<P extends keyof Embeddings = "float32">(text: string, options?: EncodeOptions<P>): Promise<Embeddings[P]>;
  /** Embed texts: one such array for each, in their order. */
  encode<P extends keyof Embeddings = "float32">(texts: Iterable<string>, options?: EncodeOptions<P>): Promise<Embeddings[P][]>;

  /** Embed a query, which is to find documents: `encode` with the bundle's prompt for queries, and the same where it has none. */
  encodeQuery<P extends keyof Embeddings = "float32">(text: string, options?: EncodeOptions<P>): Promise<Embeddings[P]>;
  encodeQuery<P extends keyof Embeddings = "float32">(texts: Iterable<string>, options?: EncodeOptions<P>): Promise<Embeddings[P][]>;
  /** Embed a document: `encode` with the bundle's prompt for documents, and the same where it has none. */
  encodeDocument<P extends keyof Embeddings = "float32">(text: string, options?: EncodeOptions<P>): Promise<Embeddings[P]>;
  encodeDocument<P extends keyof Embeddings = "float32">(texts: Iterable<string>, options?: EncodeOptions<P>): Promise<Embeddings[P][]>;

  /** The token ids of a text: with its role's prompt and special tokens, truncated to `maxTokens`. `place` names it in errors. */
  tokenize(text: string, place?: string, role?: Role): number[];

  /** Compare the golden texts with the embeddings stored at export. Rejects with CheckFailed, which names the worst text. */
  check(): Promise<CheckResult>;

  /** The bundle itself; of a pair, which embeds queries by one encoder and documents by another, both. */
  readonly encoders: Bundle[];

  /** Free the graph's memory; the bundle cannot embed afterwards. */
  close(): Promise<void>;
}
