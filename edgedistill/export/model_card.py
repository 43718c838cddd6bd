"""A bundle's model card: its README.md, written from its manifest. Every number on it was measured at
export."""

from __future__ import annotations

from typing import Any

from edgedistill import recipe
from edgedistill.data.corpus import ADDED, DOCUMENTATION, PARAGRAPHS, PASSAGES
from edgedistill.export import library_card
from edgedistill.precisions import PRECISIONS, fastest_first
from edgedistill.students.embedding_tables import CENTROIDS

MOST_FILES = 20  # more files without licences are one row
# Names of sources that records keep, as readers see them.
SHOWN = {
    PARAGRAPHS: "paragraphs joined from the lines above",
    PASSAGES: "sentences of the texts above, and runs of them",
}
LICENCES = {**dict.fromkeys(SHOWN, "those of the files above"), DOCUMENTATION: "PSF-2.0"}
ANY_RUNTIME = "Any ONNX runtime that has onnxruntime's operators (domain `com.microsoft`) can run the graphs."


def encoder_card(manifest: dict[str, Any], libraries: list[str]) -> str:
    """The card of an encoder as Markdown. libraries: the other libraries that open the bundle."""
    parts = [
        _front_matter("sentence-similarity", "sentence-embeddings"),
        f"# {manifest['name']}",
        _about(manifest),
        _precisions(manifest),
        _measured(manifest),
        _use(manifest, libraries),
        _training(manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def classifier_card(manifest: dict[str, Any]) -> str:
    """The card of a classifier as Markdown."""
    pair, parameters = len(manifest["inputs"]) == 4, manifest["parameters"]
    labels = ", ".join(f"`{label}`" for label in manifest["labels"])
    about = f"{manifest['recipe']['about']}\n\n" if manifest["recipe"].get("about") else ""
    lines = [
        "| precision | file | MB | difference of a probability to torch, mean | max |",
        "|---|---|---|---|---|",
    ]
    for precision, entry in manifest["precisions"].items():
        parity = entry["parity"]
        size = f"{entry['size_bytes'] / 1e6:.2f}"
        lines.append(
            f"| {precision} | `{entry['file']}` | {size} | {parity['apart_mean']:.5f} | "
            f"{parity['apart_max']:.5f} |"
        )
    items = '[("a text", "another")]' if pair else '["a text"]'
    inputs = ", ".join(f"`{name}`" for name in manifest["inputs"])
    use = (
        "## Use\n\n```python\nimport edgedistill\n\n"
        f'labels, probabilities = edgedistill.load("path/to/this/folder").classify({items})\n```\n\n'
        f"{ANY_RUNTIME} {_tokenize(manifest)} Inputs: {inputs} (int64). Output: `logits`, one per label in "
        "the order above. "
        "`parity.json` holds items, token ids and logits to test a runner with; `edgedistill verify` runs "
        "that test."
    )
    parts = [
        f"{_front_matter('text-classification', 'text-classification')}\n\n# {manifest['name']}",
        f"{about}Predicts one of the labels {labels} for {'a pair of texts' if pair else 'a text'} of up to "
        f"{manifest['max_tokens']} tokens"
        f"{', each' if pair else ''}.\n\n{parameters['total']:,} parameters: {parameters['embedding']:,} in "
        "the embeddings, "
        f"{parameters['encoder']:,} in the encoder, {parameters['head']:,} in the classifier head.",
        "\n".join(lines),
        use,
        library_card.graphs(manifest),
        f"## Training\n\nFine-tuned by the recipe `{manifest['recipe']['name']}`. The whole recipe and its "
        "scores are in `manifest.json`.",
        _teachers(manifest),
        _earlier(manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(task: str, tag: str) -> str:
    return f"---\nlibrary_name: onnx\npipeline_tag: {task}\ntags: [{tag}, edgedistill, onnx]\n---"


def _about(manifest: dict[str, Any]) -> str:
    parameters, recipe = manifest["parameters"], manifest["recipe"]
    about = f"{recipe['about']}\n\n" if recipe.get("about") else ""
    teacher = _teacher_names(manifest)
    kinds = {
        "teacher": f"The sentence encoder {teacher}",
        "reduced": f"The sentence encoder {teacher}, its embeddings reduced by the recipe's `targets`",
    }
    what = kinds.get(manifest["kind"], f"A student of kind `{manifest['kind']}`, distilled from {teacher}")
    prompt = f" The prompt `{manifest['prompt']}` is prepended to every text." if manifest["prompt"] else ""
    return (
        f"{about}{what}. A text gives an embedding of {manifest['dims'][0]} dimensions and unit length. "
        "Texts are truncated to "
        f"{manifest['max_tokens']} tokens.{prompt}\n\n{parameters['total']:,} parameters: "
        f"{parameters['embedding']:,} in the embeddings{_quantized(recipe)}, "
        f"{parameters['encoder']:,} in the encoder, {parameters['head']:,} in the head."
    )


def _quantized(recipe: dict[str, Any]) -> str:
    """What a parameter of a product-quantized embedding table is."""
    codes, centroids = recipe["student"].get("pq_bytes"), recipe["student"].get("pq_centroids", CENTROIDS)
    size = "one byte" if centroids <= CENTROIDS else "two bytes"
    return (
        f" (product-quantized: {codes} codes of {size} per token, each counted as a parameter)"
        if codes
        else ""
    )


def _precisions(manifest: dict[str, Any]) -> str:
    lines = [
        "| precision | | file | MB | cosine to torch, mean | min | single vs. batched cosine, mean | min |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for precision, entry in manifest["precisions"].items():
        parity, drift = entry["parity"], entry["drift"]
        lines.append(
            f"| {precision} | {PRECISIONS[precision].description} | `{entry['file']}` | "
            f"{entry['size_bytes'] / 1e6:.2f} "
            f"| {parity['cosine_mean']:.5f} | {parity['cosine_min']:.5f} | {drift['mean']:.5f} | "
            f"{drift['min']:.5f} |"
        )
    return "\n".join(lines)


def _measured(manifest: dict[str, Any]) -> str:
    measured = (
        "The cosines are measured on the golden texts in `parity.json`, chosen to be difficult. Cosine to "
        "torch compares with the "
        "trained student in torch; single vs. batched compares a text run by itself with the same text in a "
        "batch. `edgedistill bench` "
        "measures accuracy, latency and memory on your machine."
    )
    return (
        f"{measured} No precision lets a text's embedding depend on the other texts of its "
        f"batch.{_preference(manifest)}"
    )


def _preference(manifest: dict[str, Any]) -> str:
    """Which of several precisions is opened where none is named, by the processor's instruction sets."""
    processors = {
        "int8_cpu": "a processor that multiplies 8-bit integers (VNNI, AMX, Arm dot products)",
        "cpu": "any other processor",
        "cuda": "CUDA",
    }
    if len(manifest["precisions"]) == 1:
        return ""
    chosen = (
        f"{fastest_first(manifest['precisions'], name)[0]} on {where}" for name, where in processors.items()
    )
    return (
        "\n\nWhere no precision is named, `edgedistill.load` opens the one measured as the fastest: "
        f"{'; '.join(chosen)}."
    )


def _tokenize(manifest: dict[str, Any]) -> str:
    return (
        f"Tokenize with `tokenizer.json`, which truncates to {manifest['max_tokens']} tokens (some "
        "libraries only do where they are asked)."
    )


def _use(manifest: dict[str, Any], libraries: list[str]) -> str:
    first = fastest_first(manifest["precisions"], "int8_cpu")[0]
    prompt = f"Prepend `{manifest['prompt']}` to every text. " if manifest["prompt"] else ""
    hidden = ""
    if "optimum" in libraries:
        pooled = (
            "whose mean is the embedding, up to its length"
            if "transformers.js pipeline" in libraries
            else "before pooling"
        )
        hidden = f"; and `last_hidden_state`, the token embeddings, {pooled}"
    parts = [
        "## Use",
        "```python\nimport edgedistill\n\n"
        f'encoder = edgedistill.load("path/to/this/folder", precision="{first}")\n'
        f'embeddings = encoder.encode(["a text", "another"])  # (2, {manifest["dims"][0]}) float32, unit '
        "length\n```",
        "The same without edgedistill:",
        library_card.plain(manifest, first),
        f"{ANY_RUNTIME} {prompt}{_tokenize(manifest)} Inputs: `input_ids` and `attention_mask` (int64, any "
        "batch size, any length up to "
        f"that limit). Output: `sentence_embedding`, already of unit length{hidden}. `parity.json` holds "
        "texts, token ids and embeddings "
        "to test a runner with, and which texts were truncated; `edgedistill verify` runs that test.",
        "### Other libraries",
        library_card.other_libraries(manifest, libraries),
        library_card.graphs(manifest),
    ]
    return "\n\n".join(part for part in parts if part)


def _training(manifest: dict[str, Any]) -> str:
    corpus = manifest["run"].get("corpus")
    held_out = f" ({corpus['held_out']:,} more were held out)" if corpus and corpus["held_out"] else ""
    unit = (
        "pairs of texts" if corpus and any("pairs" in each for each in corpus.get("sources", [])) else "texts"
    )
    texts = f" on samples of {corpus['texts'] - corpus['held_out']:,} {unit}{held_out}" if corpus else ""
    stages = ", ".join(_stage(stage) for stage in manifest["run"].get("stages", []))
    trained = "Nothing was trained: these are the teacher's own weights."
    if stages:
        trained = f"Trained{texts} by the recipe `{manifest['recipe']['name']}`: {stages}."
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    training = (
        f"## Training\n\n{trained} The whole recipe is in `manifest.json`. Exported "
        f"{manifest['made_at']} with {versions}."
    )
    parts = (training, _teachers(manifest), _sources(manifest), _earlier(manifest))
    return "\n\n".join(part for part in parts if part)


def _stage(stage: dict[str, Any]) -> str:
    """A stage's name, its steps and, where that was recorded, its samples: how often a text, pair or triple
    was read."""
    samples = f", {stage['texts']:,} samples" if "texts" in stage else ""
    return f"{stage['name']} ({stage['steps']:,} steps{samples})"


def _teacher_names(manifest: dict[str, Any]) -> str:
    """The teachers whose embeddings the student matched: "`x@1`", or "`x@1` and `y`"."""
    matched = [_teacher_name(each) for each in _recorded_teachers(manifest) if each.get("weight")]
    *first, last = [f"`{each}`" for each in matched or [manifest["teacher"]]]
    return f"{', '.join(first)} and {last}" if first else last


def _teachers(manifest: dict[str, Any]) -> str:
    """A row for each teacher that the run has recorded; nothing for runs that have recorded none."""
    recorded = _recorded_teachers(manifest)
    if not recorded:
        return ""
    weighted = any(each.get("weight") is not None for each in recorded) and len(recorded) > 1
    head = ["teacher", "revision", "licence, as stated by the recipe or by the model's card"]
    head += ["share of the targets"] if weighted else []
    rows = [
        [_teacher_title(each), each.get("revision") or "—", each.get("licence") or "not stated"]
        for each in recorded
    ]
    if weighted:
        rows = [
            [*row, f"{each['weight']:.0%}" if each.get("weight") else "—"]
            for row, each in zip(rows, recorded, strict=True)
        ]
    rule = ["---", "---", "---", *(["---:"] if weighted else [])]
    return "\n".join(f"| {' | '.join(_cell(text) for text in row)} |" for row in [head, rule, *rows])


def _recorded_teachers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return list(manifest["run"].get("teachers", []))


def _teacher_name(teacher: dict[str, Any]) -> str:
    return f"{teacher['name']}@{teacher['revision']}" if teacher.get("revision") else str(teacher["name"])


def _teacher_title(teacher: dict[str, Any]) -> str:
    return f"`{teacher['name']}`" + (f" ({teacher['use']})" if teacher.get("use") else "")


def _cell(text: str) -> str:
    """On one line, and within its column."""
    return " ".join(str(text).split()).replace("|", "\\|")


def _sources(manifest: dict[str, Any]) -> str:
    """A row for each text file of the corpus and for what was added to them, where the recipe names licences
    or adds texts."""
    found = (manifest["run"].get("corpus") or {}).get("sources", [])
    licences = (manifest["recipe"].get("corpus") or {}).get("licences") or {}
    own, added = (
        [each for each in found if each["name"] not in ADDED],
        [each for each in found if each["name"] in ADDED],
    )
    triples = recipe.triples_sources(manifest["recipe"].get("stages", []))
    if not licences and not added and not triples:
        return ""
    if not licences and len(own) > MOST_FILES:
        own = [{"name": f"{len(own):,} files", "texts": sum(map(_count, own))}]
    return _files([{**each, "licence": licences.get(each["name"])} for each in own + added], triples)


def _earlier(manifest: dict[str, Any]) -> str:
    """For each training before the last one: its recipe, a row for each of its teachers and for each text
    file of its corpus."""
    trainings = manifest["run"].get("earlier", [])
    parts = (
        ["### Earlier training", "The student had been trained before; what it learned there is part of it."]
        if trainings
        else []
    )
    for each in trainings:
        parts += [f"By the recipe `{_cell(each['recipe'])}`:", _teachers({"run": each})]
        parts += (
            [_files(each["sources"], each["triples"])]
            if each["sources"] or each["triples"]
            else ["Its text files were not recorded."]
        )
    return "\n\n".join(part for part in parts if part)


def _count(source: dict[str, Any]) -> int:
    """How many texts a source gave, or pairs of texts."""
    return int(source["texts"] if "texts" in source else source["pairs"])


def _files(files: list[dict[str, Any]], triples: list[dict[str, Any]]) -> str:
    """A row for each file, then for each stage's triples, whose number is not recorded."""
    lines = [
        "| source | texts or pairs, with held-out ones | licence, as stated by the source |",
        "|---|---:|---|",
    ]
    for each in files:
        name = each["name"]
        lines.append(
            _file_row(SHOWN.get(name, name), f"{_count(each):,}", each["licence"] or LICENCES.get(name))
        )
    return "\n".join([*lines, *(_file_row(each["name"], "", each["licence"]) for each in triples)])


def _file_row(name: str, count: str, licence: str | None) -> str:
    return f"| {_cell(name)} | {count} | {_cell(licence or 'not named')} |"
