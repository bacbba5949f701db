"""Writes to a topic: a stream's rows, with its CTIs as marks (semantics 29)."""
