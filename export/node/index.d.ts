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

export interface EncodeOptions {
  /** The dimensions to return, one of `dims`; by default the largest. */
  dim?: number;
  /** Tokens per batch with padding, by default 512. */
  batchTokens?: number;
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

/** The cosine of two embeddings of unit length. */
export function similarity(a: Float32Array, b: Float32Array): number;

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

  /** Embed a text: a Float32Array of unit length. */
  encode(text: string, options?: EncodeOptions): Promise<Float32Array>;
  /** Embed texts: one Float32Array of unit length for each, in their order. */
  encode(texts: Iterable<string>, options?: EncodeOptions): Promise<Float32Array[]>;

  /** Embed a query, which is to find documents: `encode` with the bundle's prompt for queries, and the same where it has none. */
  encodeQuery(text: string, options?: EncodeOptions): Promise<Float32Array>;
  encodeQuery(texts: Iterable<string>, options?: EncodeOptions): Promise<Float32Array[]>;
  /** Embed a document: `encode` with the bundle's prompt for documents, and the same where it has none. */
  encodeDocument(text: string, options?: EncodeOptions): Promise<Float32Array>;
  encodeDocument(texts: Iterable<string>, options?: EncodeOptions): Promise<Float32Array[]>;

  /** The token ids of a text: with its role's prompt and special tokens, truncated to `maxTokens`. `place` names it in errors. */
  tokenize(text: string, place?: string, role?: Role): number[];

  /** Compare the golden texts with the embeddings stored at export. Rejects with CheckFailed, which names the worst text. */
  check(): Promise<CheckResult>;

  /** Free the graph's memory; the bundle cannot embed afterwards. */
  close(): Promise<void>;
}
