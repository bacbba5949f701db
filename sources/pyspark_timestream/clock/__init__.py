"""Transport `time`: the simulated clock (semantics 12)."""
