"""Answers users' questions: why a query does not emit, what a topic has, how queries fare."""
