"""A recipe, its models and its corpus go in; the student before its first optimizer step comes out."""
