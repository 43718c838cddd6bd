"""A recipe whose last stage fine-tunes goes in; a student with a trained classifier head comes out."""

__all__ = ["finetune", "finetuning_plan", "labelled_inputs"]
