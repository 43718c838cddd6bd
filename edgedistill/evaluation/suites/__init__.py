"""Suite families, one module each: `read` loads the files that suite.yaml names, `score` evaluates an encoder
on them.

sts: graded similarity (STS-B, STS2017, …). retrieval: nDCG@10. bitext: finding translations. transfer:
    SentEval.
pair_classification: zero-shot, by a threshold on the cosine. labelled_task: a fine-tuned bundle on its own
    task.
"""

MEASURES = {  # kind of suite -> (the measure of a task that is averaged, its name in tables and plots)
    "sts": ("all", "Spearman × 100"),
    "retrieval": ("ndcg_at_10", "nDCG@10 × 100"),
    "bitext": ("accuracy", "accuracy × 100"),
    "transfer": ("accuracy", "accuracy × 100"),
    "pair_classification": ("accuracy", "accuracy × 100"),
    "task": ("accuracy", "accuracy × 100"),
}
