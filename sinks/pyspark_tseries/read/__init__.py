"""Queries: bounds, pruning, selection, and snapshots of earlier moments."""
