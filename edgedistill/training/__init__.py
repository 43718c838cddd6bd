"""A recipe goes in, a finished run folder comes out."""

__all__ = ["finetuning", "initialise", "inputs", "loop", "prepare", "several", "teacher_run", "train"]
