// A bundle in transformers.js: node transformers_js.mjs BUNDLE pipeline|model < request.json. See bench/ecosystems.py.
//
// pipeline: pipeline("feature-extraction", …, {pooling: "mean", normalize: true}), which pools `last_hidden_state`.
// model: the output `sentence_embedding` of AutoModel. Runs in a folder whose node_modules has @huggingface/transformers.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(resolve("package.json"));
const { AutoModel, AutoTokenizer, env, pipeline } = await import(pathToFileURL(require.resolve("@huggingface/transformers")));
const DTYPES = { fp32: "fp32", fp16: "fp16", int8: "q8", w4: "q4" };

const [folder, how] = [resolve(process.argv[2]), process.argv[3]];
const request = JSON.parse(readFileSync(0, "utf8"));
[env.allowRemoteModels, env.localModelPath] = [false, dirname(folder)];
const vectors = {};
for (const [precision, file] of Object.entries(request.files)) {
  const options = precision in DTYPES ? { dtype: DTYPES[precision] } : { dtype: "fp32", model_file_name: basename(file, ".onnx") };
  if (how === "pipeline") {
    const extract = await pipeline("feature-extraction", basename(folder), options);
    vectors[precision] = (await extract(request.texts, { pooling: "mean", normalize: true })).tolist();
  } else {
    const tokenizer = await AutoTokenizer.from_pretrained(basename(folder));
    const model = await AutoModel.from_pretrained(basename(folder), options);
    const inputs = await tokenizer(request.texts, { padding: true, truncation: true });
    vectors[precision] = (await model(inputs)).sentence_embedding.tolist();
  }
}
console.log(JSON.stringify({ version: env.version, vectors }));
