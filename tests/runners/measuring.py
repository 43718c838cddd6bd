"""A bundle that another program measures, once and briefly."""

from __future__ import annotations

from edgedistill.evaluation import bench, speed
from edgedistill.session import Session


def measured(name: str, runner: str, texts: list[str]) -> bench.Measured:
    """What `bench` has of it after four queries: its embeddings are compared with edgedistill's own."""
    [target] = bench.targets(name)
    target.runner = speed.Runner.named(runner)
    request = {"what": "time", "bundle": str(target.folder), "precision": target.precision, "texts": texts}
    request |= {"queries": [2, 0, 3, 1], "warmups": 1, "seconds": 0.01, "query_seconds": 0, "device": "cpu"}
    plan = speed.MeasurementPlan(queries=4, rounds=1, resamples=20)
    target.speed = speed.summary([speed.ask(target.runner, request | {"threads": 1})], plan)
    bench._check_embeddings(target, texts, Session(threads=1))
    return target
