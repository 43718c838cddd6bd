"""Students: modules with one signature, `forward(input_ids, attention_mask) -> (B, d)`, and nothing else in common."""
