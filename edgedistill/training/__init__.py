"""A recipe goes in, a finished run folder comes out."""

__all__ = [
    "checkpoint",
    "checkpoint_selection",
    "checks",
    "diverged",
    "initial_student",
    "inputs",
    "load_models",
    "metrics_log",
    "open_recipe",
    "optimizers",
    "plain_attention",
    "resume",
    "series",
    "stage_in_progress",
    "stages",
    "student_embeddings",
    "teacher_record",
    "teacher_run",
    "train",
    "training_data",
]
