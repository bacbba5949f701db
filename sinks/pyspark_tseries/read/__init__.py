"""Queries and subscriptions: pruning, selection, the moment of a query, positions."""
