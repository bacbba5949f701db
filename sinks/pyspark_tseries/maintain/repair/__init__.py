"""Repair of a damaged store (semantics 26)."""
