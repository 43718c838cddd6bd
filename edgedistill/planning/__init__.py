"""A recipe goes in; its problems, and an estimate of what it will cost, come out before anything is
trained."""

__all__ = ["cost", "preflight", "training_time"]
