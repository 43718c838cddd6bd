"""Names that people know from other tools, so that an error can point to our key."""

from __future__ import annotations

# What sentence-transformers, transformers and others call the same thing.
ALIASES: dict[str, str] = {
    "batch_size": "batch",
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


def own_name(key: str, known: list[str]) -> str | None:
    """Our name of a key known from other tools; None where that is not among the known keys."""
    alias = ALIASES.get(key.lower().replace("-", "_"))
    return alias if alias in known else None
