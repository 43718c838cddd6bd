"""Suites by family: a module reads its files (`read`) and scores an encoder on them (`score`). What each family's number is called."""

MEASURES = {  # kind of suite -> (the task's number that is averaged, its name beside a table)
    "sts": ("all", "Spearman × 100"),
    "retrieval": ("ndcg_at_10", "nDCG@10 × 100"),
    "bitext": ("accuracy", "accuracy × 100"),
    "transfer": ("accuracy", "accuracy × 100"),
    "similarity": ("accuracy", "accuracy × 100"),
    "task": ("accuracy", "accuracy × 100"),
}
