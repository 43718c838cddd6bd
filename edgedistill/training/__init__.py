"""A recipe goes in, a finished run folder comes out."""

__all__ = [
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
    "student_embeddings",
    "teacher_cache",
    "train",
    "trained_module",
    "training_data",
    "training_sources",
]
