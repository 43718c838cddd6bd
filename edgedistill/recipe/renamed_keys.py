"""Keys that were renamed and names people know from other tools, so that an error can point to the right key."""

from __future__ import annotations

# Old key -> new key, by the place in a recipe that holds it; "" is the recipe itself.
RENAMED: dict[str, dict[str, str]] = {
    "": {"promise": "requirements"},
    "teacher": {"vectors": "embeddings", "vector_column": "embedding_column"},
    "assistant": {"vectors": "embeddings", "vector_column": "embedding_column"},
    "corpus": {"pieces": "passages"},
    "pairs": {"score": "score_column", "least": "min_score"},
    "student": {
        "codes": "pq_bytes",
        "vocabulary": "vocabulary_size",
        "times": "repeats",
        "onto": "reference_student",
    },
    "embeddings": {"weigh": "weighting", "power": "count_exponent"},
    "unigram": {"pieces": "vocabulary_size"},
    "reduce": {"power": "variance_exponent", "strength": "regularization"},
    "targets": {"unit": "normalize"},
    "objective": {"unit": "normalize", "learned": "learn_temperature"},
    "view": {"fraction": "drop_fraction", "there": "forward", "back": "backward", "text": "text_column", "view": "view_column"},
    "stages": {"longest": "skip_longer_than", "rates": "learning_rates", "measure": "metric", "positive": "positive_label"},
    "match": {"at": "layer"},
    "select": {"within": "tolerance", "without": "languages_without_dev"},
}
RENAMED["student"] |= {"positions": "max_positions or position_ids", "weights": "token_weights"}  # which one depends on the kind

RENAMED_KINDS = {"prose": "documentation"}

RENAMED_VALUES = {"counts": "frequency", "words": "token_embeddings"}

# What sentence-transformers, transformers and others call the same thing.
ALIASES: dict[str, str] = {
    "batch_size": "batch",
    "ema_decay": "ema",
    "embedding_dim": "dims",
    "eval_steps": "every",
    "gradient_clipping": "clip",
    "hidden_act": "activation",
    "hidden_size": "width",
    "intermediate_size": "intermediate",
    "loss": "objective",
    "lr": "learning_rate",
    "lr_scheduler": "schedule",
    "lr_scheduler_type": "schedule",
    "max_grad_norm": "clip",
    "max_length": "max_tokens",
    "max_seq_length": "max_tokens",
    "max_steps": "steps",
    "model_name": "model",
    "model_name_or_path": "model",
    "num_attention_heads": "heads",
    "num_epochs": "epochs",
    "num_hidden_layers": "layers",
    "num_layers": "layers",
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch",
    "precision": "dtype",
    "temp": "temperature",
    "vocab_size": "vocabulary_size",
    "wd": "weight_decay",
    "warmup_ratio": "warmup",
}


def new_name(section: str, key: str, known: list[str]) -> str | None:
    """What a key of this section was renamed to; None where that is not among the known keys."""
    names = RENAMED.get(section, {}).get(key, "").split(" or ")
    return " or ".join(name for name in names if name in known) or None


def own_name(key: str, known: list[str]) -> str | None:
    """Our name of a key known from other tools; None where that is not among the known keys."""
    alias = ALIASES.get(key.lower().replace("-", "_"))
    return alias if alias in known else None
