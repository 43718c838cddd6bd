"""A recipe whose last stage fine-tunes goes in; a student with a trained classifier head, and its bundle,
come out."""

__all__ = ["bundle", "classifier", "export", "finetune", "labelled_rows", "tuning"]
