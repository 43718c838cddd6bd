"""A recipe goes in, a finished run folder comes out."""

__all__ = [
    "checks",
    "finetuning",
    "initial_student",
    "inputs",
    "load_models",
    "loop",
    "metrics_log",
    "optimizers",
    "plain_attention",
    "prepare",
    "resume",
    "run_in_progress",
    "series",
    "stages",
    "student_embeddings",
    "teacher_record",
    "teacher_run",
    "train",
]
