"""A recipe goes in, a finished run folder comes out."""

__all__ = [
    "cache_passes",
    "checkpoint",
    "checkpoint_selection",
    "checks",
    "finetuning",
    "initial_student",
    "inputs",
    "load_models",
    "open_recipe",
    "processes",
    "record",
    "resume",
    "stage_in_progress",
    "stages",
    "train",
    "trained_module",
    "training_data",
    "training_sources",
]
