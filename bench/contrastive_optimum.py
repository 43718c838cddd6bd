"""Where stage 4's objectives of multi-stage distillation lead a student that could learn anything: embeddings are optimized freely.

python bench/contrastive_optimum.py --texts FILE.txt.gz [--batches 5] [--steps 1000] [--out bench/reports/contrastive-optimum.json]

The teacher embeds random batches of 48 texts. Both sides of a batch start at its embeddings, and Adam minimizes objective + MSE, as
stage 4 does. `spearman` is then the rank correlation of the cosines between the sides with the teacher's, over unequal texts: 1 where
the teacher's embeddings are the optimum. `translation` is the mean cosine of a text and its translation.
"""

from __future__ import annotations

import argparse
import gzip
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import normalize

from edgedistill import files, recipe, run
from edgedistill.objectives.pairs import mcl, mcl_bool, mcl_ce
from edgedistill.objectives.regression import mse
from edgedistill.teacher.encoder import TeacherEncoder

BATCH, SCALE = 48, 20.0  # texts; 1 / the paper's temperature
LEARNING_RATE = 0.1
OBJECTIVES = {
    "mcl": mcl,
    "bool": mcl_bool,
    "ce": partial(mcl_ce, scale=SCALE, reduction="sum"),
    "ce, mean over pairs": partial(mcl_ce, scale=SCALE, reduction="pairs"),
}


def optimum(name: str, teacher: Tensor, steps: int) -> dict[str, float]:
    """Optimize both sides of one batch, teacher (B, d) of unit length, from the teacher's embeddings."""
    length = teacher.shape[1] ** 0.5  # as recipes scale the teacher's embeddings for MSE
    source, target = (length * teacher).requires_grad_(), (length * teacher).requires_grad_()
    optimizer = torch.optim.Adam([source, target], LEARNING_RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = OBJECTIVES[name](source, target, teacher) + sum(mse(side, teacher, scale=length) for side in (source, target))
        loss.backward()
        optimizer.step()
    cosines = (normalize(source, dim=1) @ normalize(target, dim=1).T).detach()
    unequal = ~torch.eye(len(teacher), dtype=torch.bool)
    correlation = spearmanr(cosines[unequal], (teacher @ teacher.T)[unequal])[0]
    return {"spearman": float(correlation), "translation": float(cosines.diagonal().mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="One text per line, gzipped.")
    parser.add_argument("--model", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with gzip.open(arguments.texts, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    drawn = np.random.default_rng(0).choice(len(lines), arguments.batches * BATCH, replace=False)
    teacher = TeacherEncoder(recipe.Teacher(model=arguments.model))
    embeddings = torch.from_numpy(teacher.embed([lines[at] for at in drawn])).view(arguments.batches, BATCH, -1)
    cosines = (embeddings @ embeddings.mT)[:, ~torch.eye(BATCH, dtype=torch.bool)]
    objectives = {}
    for name in OBJECTIVES:
        found = [optimum(name, batch, arguments.steps) for batch in embeddings]
        objectives[name] = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        print(name, objectives[name], flush=True)
    report = {
        "schema": 1,
        "bench": "contrastive-optimum",
        "texts": arguments.texts.name,
        "batches": arguments.batches,
        "steps": arguments.steps,
        "negative_cosines": float((cosines < 0).float().mean()),
        "weight_of_other_texts": float(cosines.sum(1).mean() / BATCH),
        "objectives": objectives,
        **run.provenance(),
    }
    if arguments.out:
        files.write_json(arguments.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
