"""Diagnosis: why a query does not emit or loses rows, what a topic has, how queries fare."""
