"""Bytes: data files, head files and locks, on a disk or in an object store; no Delta."""
