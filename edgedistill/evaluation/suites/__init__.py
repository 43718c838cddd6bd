"""Families of suites, one module each: `read` loads the files that suite.yaml names, `score` evaluates an
encoder on them."""

from edgedistill.evaluation.suites import (
    bitext,
    labelled_task,
    mteb_task,
    pair_classification,
    retrieval,
    sts,
    transfer,
)

FAMILIES = {
    "sts": sts.FAMILY,  # graded similarity: STS-B, STS2017, …
    "retrieval": retrieval.FAMILY,  # nDCG@10
    "bitext": bitext.FAMILY,  # finding translations
    "transfer": transfer.FAMILY,  # SentEval: a linear classifier on embeddings
    "pair_classification": pair_classification.FAMILY,  # zero-shot, by a threshold on the cosine
    "mteb": mteb_task.FAMILY,  # a task of mteb, by its own evaluator
    "task": labelled_task.FAMILY,  # a fine-tuned bundle on its own task
}
