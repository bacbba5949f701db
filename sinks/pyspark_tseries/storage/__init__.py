"""Bytes on a disk or in an object store: files, heads, locks, a store as of a commit; no Delta."""
