"""run -> bundle: graphs in each precision, compared with torch on awkward texts before the folder gets its name."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from torch import nn

from edgedistill import files, graph
from edgedistill.errors import AnswerIsNo, UserError, unknown
from edgedistill.export import card, classifier_bundle, library_files, quantize
from edgedistill.run import Run, open_run, versions
from edgedistill.runtime import bundle, verify
from edgedistill.session import Log

FILES = {  # the names transformers.js looks for: its q8, the default in a browser, is `model_quantized.onnx`
    "fp32": "onnx/model.onnx",
    "w8": "onnx/model_w8.onnx",
    "int8": "onnx/model_quantized.onnx",
}


class Needed(NamedTuple):
    """The smallest cosines a precision may show: to torch, alone and in one padded batch, and of the one to the other (drift)."""

    alone: float
    batched: float
    drift: float
    instead: str | None  # what to try when it shows less


NEEDED = {
    # the same products in another order: float32 differs in the seventh digit
    "fp32": Needed(0.99999, 0.99999, 0.99999, None),
    # 8 bits in blocks of 32: a six-layer encoder keeps 0.998 on ordinary text, and every row is quantized by itself
    "w8": Needed(0.99, 0.99, 0.99999, "fp32"),
    # one scale for a batch of activations: the same encoder keeps 0.978 alone, 0.967 among others; what moves is written in the
    # manifest as drift, not forbidden, so that only a graph that is wrong fails here
    "int8": Needed(0.95, 0.90, 0.0, "w8"),
}
PACKAGES = ("onnx", "onnxruntime", "torch", "transformers", "tokenizers", "numpy")


class Golden(NamedTuple):
    """What every runner must give: texts, their token ids, and unit vectors by torch, each text alone."""

    texts: list[str]
    ids: list[list[int]]
    vectors: np.ndarray


def export(run_folder: Path, precisions: list[str], out: Path, log: Log) -> dict[str, Any]:
    """Write a run as a bundle at `out`, whole or not at all. Returns {name, parameters, precisions, files}.

    A bundle that already has the name is replaced, nothing else is. Raises UserError: no run, a precision that is not known, another
    student's tokenizer. Raises AnswerIsNo, and writes nothing, when a graph does not say what torch says.
    """
    precisions = _known(precisions)
    if out.exists() and not (out / "manifest.json").exists():
        raise UserError(f"{out}: is there already and is no bundle; choose another name for it")
    run = open_run(run_folder)
    if run.labels:
        return _export_classifier(run, precisions, out, log)
    student = run.student()
    golden = _golden(run, student)
    model = graph.build(student)
    found: dict[str, Any] = {}
    with files.new_folder(out) as folder:
        library_files.write(folder, run, student, half="fp32" not in precisions)
        (folder / "onnx").mkdir()
        for precision in precisions:
            found[precision] = _write_graph(folder, run, student, quantize.quantize(model, precision), precision, out)
        parity = {"about": "text i -> ids i (alone, uncut batch) -> vectors i, unit rows by torch in float32", "dims": run.dims}
        tolerances = {precision: NEEDED[precision].alone for precision in precisions}
        vectors = [[round(value, 6) for value in row] for row in golden.vectors.astype(np.float64).tolist()]
        golden_file = {**parity, "cosine_at_least": tolerances, "texts": golden.texts, "ids": golden.ids, "vectors": vectors}
        files.write_json(folder / "parity.json", golden_file, compact=True)
        for precision in precisions:
            files.write_json(folder / "manifest.json", _manifest(folder, run, found))
            found[precision] |= _compared(bundle.load(folder, precision=precision), golden, out)
            log(_line(precision, found[precision]))
        manifest = _manifest(folder, run, found)
        files.write_text(folder / "README.md", card.card(manifest, _others(student, precisions)))
        _seal(folder, manifest, out, log)
    return {"name": manifest["name"], "parameters": run.parameters, "precisions": found, "dims": manifest["dims"]}


def _export_classifier(run: Run, precisions: list[str], out: Path, log: Log) -> dict[str, Any]:
    """Write a fine-tuned run: a graph of logits, compared by probabilities. Returns and raises as `export` does."""
    student = run.classifier()
    golden = classifier_bundle.golden(run, student, awkward)
    words: Any = run.tokenizer()
    model = classifier_bundle.build(student, words.pad_token_id or 0)
    worst = classifier_bundle.compare(student, model, run.max_tokens, library_files.pieces(student.encoder))
    if not worst <= classifier_bundle.WITHIN["fp32"]:
        raise AnswerIsNo(f"{out} was not written: the graph gives other probabilities than torch on random ids ({worst:.4f} apart)")
    found: dict[str, Any] = {}
    more = {"labels": run.labels, "inputs": classifier_bundle.INPUTS[: 4 if student.pair else 2], "output": "logits"}
    with files.new_folder(out) as folder:
        library_files.write_classifier(folder, run)
        (folder / "onnx").mkdir()
        for precision in precisions:
            path = folder / FILES[precision]
            path.write_bytes(quantize.quantize(model, precision).SerializeToString())
            found[precision] = {"file": FILES[precision], "sha256": files.sha256_file(path), "size_bytes": path.stat().st_size}
        files.write_json(folder / "parity.json", classifier_bundle.parity_file(run, golden, precisions), compact=True)
        for precision in precisions:
            files.write_json(folder / "manifest.json", _manifest(folder, run, found) | more)
            found[precision] |= classifier_bundle.compared(bundle.load(folder, precision=precision), golden, str(out))
            log(classifier_bundle.line(precision, found[precision]))
        manifest = _manifest(folder, run, found) | more
        files.write_text(folder / "README.md", classifier_bundle.card(manifest))
        _seal(folder, manifest, out, log)
    return {"name": manifest["name"], "parameters": run.parameters, "precisions": found, "labels": run.labels}


def _known(precisions: list[str]) -> list[str]:
    """The precisions asked for, each once, fp32 first."""
    if not precisions:
        raise UserError(f"--precision: none given; choose from {', '.join(FILES)}")
    for precision in precisions:
        if precision not in FILES:
            raise UserError(f"--precision: {unknown('precision', precision, FILES)}")
    return [precision for precision in FILES if precision in precisions]


def _write_graph(folder: Path, run: Run, student: nn.Module, model: onnx.ModelProto, precision: str, out: Path) -> dict[str, Any]:
    """One graph file, after it has run at every shape. Random ids judge float32 only; what 8 bits lose is judged on texts."""
    worst = graph.compare(student, model, run.max_tokens, library_files.pieces(student))
    if not worst > (NEEDED["fp32"].alone if precision == "fp32" else -1):  # a cosine of NaN is above nothing
        raise AnswerIsNo(f"{out} was not written: the {precision} graph gives other vectors than torch on random ids (cosine {worst:.4f})")
    path = folder / FILES[precision]
    path.write_bytes(model.SerializeToString())
    return {"file": FILES[precision], "sha256": files.sha256_file(path), "size_bytes": path.stat().st_size}


def _golden(run: Run, student: nn.Module) -> Golden:
    """The awkward texts as torch and transformers see them, from the run's own folder."""
    words: Any = run.tokenizer()
    have, known = len(words), library_files.pieces(student)
    if have > known:
        raise UserError(f"{run.tokenizer_folder}: {have} pieces, but a word table of {known}; put back the tokenizer of this student")
    texts = awkward(lambda text: len(words(run.prompt + text, verbose=False)["input_ids"]), run.max_tokens)
    ids = [words(run.prompt + text, truncation=True, max_length=run.max_tokens)["input_ids"] for text in texts]
    with torch.inference_mode():
        rows = [student(torch.tensor([row]), torch.ones((1, len(row)), dtype=torch.long)) for row in ids]
    return Golden(texts, ids, torch.nn.functional.normalize(torch.cat(rows), dim=-1).numpy())


def _compared(opened: bundle.Bundle, golden: Golden, out: Path) -> dict[str, Any]:
    """{parity, drift} of one precision. Raises AnswerIsNo where it does not keep what NEEDED asks.

    Token ids first and apart, so that a failure says which side is wrong.
    """
    ids = opened.tokenize(golden.texts)
    for at, (found, expected) in enumerate(zip(ids, golden.ids, strict=True)):
        if found.tolist() != expected:
            raise AnswerIsNo(
                f"{out} was not written: {_which(golden, at)} became other token ids in the bundle ({_short(found.tolist())}) than in "
                f"the run ({_short(expected)}); the vectors were not compared: tokenizer.json does not say all that the run's "
                "tokenizer does",
                {"text": at, "ids": found.tolist(), "expected": expected},
            )
    precision, needed = opened.precision, NEEDED[opened.precision]
    alone = np.concatenate([opened.encode_ids([row]) for row in ids]).astype(np.float64)
    batched = opened.encode_ids(ids, batch_tokens=len(ids) * opened.max_tokens).astype(np.float64)
    to_torch, to_torch_batched, drift = ((a * b).sum(1) for a, b in ((alone, golden.vectors), (batched, golden.vectors), (alone, batched)))
    for cosines, least, how in ((to_torch, needed.alone, ""), (to_torch_batched, needed.batched, " in a batch with the others")):
        at = int(np.argmin(cosines))
        if not cosines[at] >= least:
            numbers = {"text": at, "cosine": float(cosines[at]), "needed": least}
            raise AnswerIsNo(_refusal(out, golden, at, cosines[at], precision, how), numbers)
    if not drift.min() >= needed.drift:
        at = int(np.argmin(drift))
        raise AnswerIsNo(
            f"{out} was not written: {_which(golden, at)} alone and among others differ by more than {precision} may "
            f"(cosine {drift[at]:.6f}, must reach {needed.drift}); the graph mixes texts of a batch: a bug, please report it",
            {"text": at, "drift": float(drift[at])},
        )
    return {
        "parity": {
            "cosine_mean": round(float(to_torch.mean()), 6),
            "cosine_min": _digits(to_torch.min()),
            "batched_min": _digits(to_torch_batched.min()),
            "threshold": needed.alone,
        },
        "drift": {"mean": round(float(drift.mean()), 6), "min": _digits(drift.min())},
    }


def _refusal(out: Path, golden: Golden, at: int, cosine: float, precision: str, how: str) -> str:
    needed = NEEDED[precision]
    came, least = verify.shown(cosine, needed.batched if how else needed.alone)
    way_out = f"try --precision {needed.instead}" if needed.instead else "a bug in the graph, please report it"
    return (
        f"{out} was not written: {_which(golden, at)} came back at cosine {came}{how}, {precision} must reach {least}; "
        f"token ids agree, so the loss is in the arithmetic: {way_out}"
    )


def _which(golden: Golden, at: int) -> str:
    return f"text {at + 1} of {len(golden.texts)} ({verify.quoted(golden.texts[at])})"


def _short(ids: list[int]) -> str:
    return " ".join(map(str, ids[:8])) + (" …" if len(ids) > 8 else "")


def _digits(value: float) -> float:
    """Six digits, rounded down: what is written as a minimum was reached. (float32 noise reads 0.999999.)"""
    return float(np.floor(value * 1e6) / 1e6)


def _manifest(folder: Path, run: Run, found: dict[str, Any]) -> dict[str, Any]:
    words: Any = run.tokenizer()
    return {
        "schema": bundle.SCHEMA,
        "name": run.recipe.name,
        "kind": run.kind,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "recipe": run.recipe.model_dump(mode="json", by_alias=True),
        "teacher": run.recipe.teacher.name,
        "dims": [run.dims, *run.cuts],
        "max_tokens": run.max_tokens,
        "prompt": run.prompt,
        "pad_id": words.pad_token_id or 0,
        "parameters": run.parameters,
        "precisions": found,
        "inputs": ["input_ids", "attention_mask"],
        "output": "sentence_embedding",
        "files": _hashes(folder),
        "versions": versions(PACKAGES),
        "run": run.info,
    }


def _seal(folder: Path, manifest: dict[str, Any], out: Path, log: Log) -> None:
    """Write the manifest with the hash of every other file, and of itself."""
    whole = manifest | {"files": _hashes(folder)}
    files.write_json(folder / "manifest.json", whole | {"digest": bundle.digest(whole)})
    if out.exists():
        log(f"{out}: takes the place of the bundle that was there")


def _hashes(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): files.sha256_file(path) for path in paths}


def _others(student: nn.Module, precisions: list[str]) -> list[str]:
    """Which other libraries open the bundle: those that look for `last_hidden_state`, in the file each looks for first."""
    if not library_files.is_encoder(student):
        return []
    return [name for name, needs in (("sentence-transformers", "fp32"), ("transformers.js", "int8")) if needs in precisions]


def _line(precision: str, found: dict[str, Any]) -> str:
    parity, drift = found["parity"], found["drift"]
    return (
        f"{precision}: {found['size_bytes'] / 1e6:.2f} MB; cosine to torch {parity['cosine_mean']:.5f} mean, "
        f"{parity['cosine_min']:.5f} min; alone against in a batch {drift['min']:.5f} min"
    )


def awkward(tokens: Callable[[str], int], longest: int) -> list[str]:
    """32 texts that runners stumble over, among them one of exactly `longest` tokens and one of a token more."""
    full = _filled(tokens, longest)
    return [
        "",
        " ",
        "\t\n  \r\n",
        "a",
        ".",
        "The quick brown fox jumps over the lazy dog.",
        "How do I reset my password?",
        "ALL OF THIS IS SHOUTED, and this is not",
        "naïve café, jalapeño, Ångström, Straße, İstanbul",
        "nai\u0308ve cafe\u0301, and q\u0307\u0323 z\u0351\u036b\u0343\u036a a\u0334\u0335\u031c\u0330",  # combining marks
        "北京今天的天气很好。",
        "東京タワーは高いです。ﾊﾝｶｸ",
        "한국어 문장입니다. \u1112\u1161\u11ab\u1100\u1173\u11af",  # composed, and letter by letter
        "هذا نص يُقرأ من اليمين إلى اليسار",
        "שלום עולם, left to right, then שוב",
        "नमस्ते दुनिया ภาษาไทยไม่มีช่องว่าง",
        "ﬁnance 🙂",
        "👩\u200d👩\u200d👧\u200d👦 🇺🇳 👍🏽 🙃",  # one family, one flag, one thumb
        "🙂" * 50,
        "Привет, мир! Γειά σου Κόσμε",
        "\x00\x01\x07\x1b[31mred\x1b[0m \x7f\x85 end",
        "\ufeffzero\u200bwidth\u2060joiner soft\u00adhyphen \u202eoverride\u202c",
        "private \ue000, replaced \ufffd, unassigned \U000e0fff, astral 𝕳𝖊𝖑𝖑𝖔 𐍈",
        "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <pad>",
        "1234567890 3.14159 1e-9 ½ ² Ⅷ ١٢٣ €£¥",
        "def f(x): return {'a': x**2}  # https://example.org/?q=a%20b&c=1",
        "word-with_under.scores/and\\slashes… “quotes” — dashes",
        full,
        f"{full} a",
        "Once upon a time there was a very long text that went on and on. " * 60,
        "x" * 10_000,
        "长" * 2_000,
    ]


def _filled(tokens: Callable[[str], int], longest: int) -> str:
    """A text of `longest` tokens, or as near below as words of several pieces come."""
    word = next((word for word in ("a", "the", "1", ".") if tokens(f"{word} {word}") - tokens(word) == 1), "a")
    step = max(1, tokens(f"{word} {word}") - tokens(word))
    count = max(1, (longest - tokens(word)) // step + 1)
    return " ".join([word] * count)
