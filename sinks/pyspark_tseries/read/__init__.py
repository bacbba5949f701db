"""Queries and subscriptions: pruning, selection, snapshots of earlier moments, positions."""
