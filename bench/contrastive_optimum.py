"""Where stage 4's objectives of multi-stage distillation lead a student that could learn anything: embeddings
are optimized freely.

python bench/contrastive_optimum.py --texts FILE [--batches 5] [--steps 1000] [--out
bench/reports/contrastive-optimum.json]

The teacher embeds random batches of 48 texts. Both sides of a batch start at its embeddings, and Adam
minimizes objective + MSE, as stage 4 does. `spearman` is then the rank correlation of the cosines between the
sides with the teacher's, over unequal texts: 1 where the teacher's embeddings are the optimum. `translation`
is the mean cosine of a text and its translation.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.functional import normalize

from edgedistill import files, objectives, recipe, run
from edgedistill.data import readers
from edgedistill.teacher.encoder import TeacherEncoder

BATCH, LEARNING_RATE = 48, 0.1
REDUCTION = "stages.2.objective.terms.0.objective.reduction"
RECIPES: dict[str, tuple[str, list[str]]] = {
    "mcl": ("multi-stage-b128-m3", []),
    "bool": ("multi-stage-b128-m3-bool", []),
    "ce": ("multi-stage-b128-m3-ce", [f"{REDUCTION}=sum"]),
    "ce, mean over pairs": ("multi-stage-b128-m3-ce", [f"{REDUCTION}=pairs"]),
}


def stage_4(name: str, dims: int) -> nn.Module:
    """The objective of a recipe's stage 4: its contrastive loss + MSE."""
    return objectives.build(recipe.read(*RECIPES[name]).stages[2].objective, dims, unit_length=True)


def optimum(objective: nn.Module, teacher: Tensor, steps: int) -> dict[str, float]:
    """Optimize both sides of one batch, teacher (B, d) of unit length, from the teacher's embeddings."""
    targets = objectives.Targets((teacher, teacher))
    length = teacher.shape[1] ** 0.5  # as MSE scales embeddings of unit length
    sides = [(length * teacher).requires_grad_() for _ in range(2)]
    optimizer = torch.optim.Adam(sides, LEARNING_RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(sides, targets).backward()
        optimizer.step()
    cosines = (normalize(sides[0], dim=1) @ normalize(sides[1], dim=1).T).detach()
    unequal = ~torch.eye(len(teacher), dtype=torch.bool)
    correlation = spearmanr(cosines[unequal], (teacher @ teacher.T)[unequal])[0]
    return {"spearman": float(correlation), "translation": float(cosines.diagonal().mean())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True, help="One text per line.")
    parser.add_argument("--model", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = list(readers.texts_in(arguments.texts))
    drawn = np.random.default_rng(0).choice(len(lines), arguments.batches * BATCH, replace=False)
    teacher = TeacherEncoder(recipe.Teacher(model=arguments.model))
    embeddings = torch.from_numpy(teacher.embed([lines[at] for at in drawn])).view(
        arguments.batches, BATCH, -1
    )
    cosines = (embeddings @ embeddings.mT)[:, ~torch.eye(BATCH, dtype=torch.bool)]
    optima = {}
    for name in RECIPES:
        objective = stage_4(name, teacher.dims)
        found = [optimum(objective, batch, arguments.steps) for batch in embeddings]
        optima[name] = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        print(name, optima[name], flush=True)
    report = {
        "schema": 1,
        "bench": "contrastive-optimum",
        "texts": arguments.texts.name,
        "batches": arguments.batches,
        "steps": arguments.steps,
        "negative_cosines": float((cosines < 0).float().mean()),
        "weight_of_other_texts": float(cosines.sum(1).mean() / BATCH),
        "objectives": optima,
        **run.provenance(),
    }
    if arguments.out:
        files.write_json(arguments.out, report)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
