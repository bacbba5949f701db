"""The rules of CTIs: pure folds over columns of events and marks (semantics 2 to 5)."""
