"""The order of training, and the ids a batch is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from edgedistill import recipe
from edgedistill.data import corpus
from edgedistill.data.token_cache import TokenCache, TokenPass
from edgedistill.session import QUIET, Session
from edgedistill.training.inputs.batch_order import BatchOrder

SIZES = recipe.Stage.model_validate(
    {"name": "a", "objective": {"kind": "cosine"}, "batch": 10, "bucket": 10, "max_tokens": 64}
)


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenCache:
    monkeypatch.setenv("EDGEDISTILL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text(
        "\n".join(" ".join([f"w{i % 50}"] * (i % 9 + 1)) + f" w{i}" for i in range(300)), encoding="utf-8"
    )
    made = corpus.build(recipe.Rows(files=["a.txt"]), Session(data=tmp_path), 0)
    words = Tokenizer(
        models.WordLevel({f"w{i}": i + 1 for i in range(300)} | {"[UNK]": 0}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TokenPass(made, words, 64, 0, QUIET).open()


def batches_of_a_pass(order: BatchOrder) -> list[np.ndarray]:
    seen = [b for number in range(3) for b, _ in order.window(number)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(300))
    assert [len(batch) for batch in seen] == [10] * 30
    return seen


def test_every_text_comes_once_a_pass_and_a_batch_has_one_length(tokens: TokenCache):
    order = BatchOrder(SIZES, tokens, np.arange(300), seed=1)
    seen = batches_of_a_pass(order)
    spread = [np.ptp(tokens.lengths(batch)) for batch in seen]
    assert np.median(spread) <= 1


def test_passes_follow_each_other_without_a_seam(tokens: TokenCache):
    order = BatchOrder(SIZES, tokens, np.arange(300), seed=1)
    drawn = [order.at(step) for step in range(70)]
    assert all((a == b).all() for a, b in zip(drawn[15], order.window(1)[5], strict=True))
    seen, passes = (np.concatenate(part) for part in zip(*drawn, strict=True))
    assert all(np.bincount(seen[passes == each], minlength=300).tolist() == [1] * 300 for each in (0, 1))
    assert np.bincount(passes).tolist() == [300, 300, 100]
    assert np.bincount(seen, minlength=300).min() == 2
    assert np.bincount(seen).max() == 3


def test_ids_are_those_of_the_text_padded_and_cut(tokens: TokenCache):
    ids, mask = tokens.batch(np.array([0, 4]), 64)
    assert ids.tolist() == [[1, 1, 0, 0, 0, 0], [5, 5, 5, 5, 5, 5]]
    assert mask.tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
    cut, _ = tokens.batch(np.array([17]), 3)
    assert cut.tolist() == [[18, 18, 18]]
    last, _ = tokens.batch(np.array([58]), 3)
    assert last.tolist() == [[9, 9, 59]]  # cut, but the last token (a model's closing one) stays


@pytest.mark.parametrize(
    ("objective", "window"),
    [
        ({"kind": "cosine"}, 100),
        ({"kind": "ckd"}, 1),
        ({"kind": "congen", "alpha": 1}, 1),
        ({"kind": "mcl"}, 1),
        ({"kind": "each_side", "objective": {"kind": "mse"}}, 100),
        (
            {
                "kind": "sum",
                "terms": [
                    {"weight": 1, "objective": {"kind": "cosine"}},
                    {"weight": 1, "objective": {"kind": "ckd"}},
                ],
            },
            1,
        ),
    ],
)
def test_negatives_of_the_batch_are_of_all_lengths(objective: dict[str, object], window: int):
    stage = recipe.Stage.model_validate({"name": "a", "objective": objective})
    assert stage.sorting_window == window
    assert recipe.Stage.model_validate({"name": "a", "objective": objective, "bucket": 7}).sorting_window == 7
