"""Diagnosis: what holds a stream's CTI back or loses its rows, and what to do about it."""
