"""The rules of CTIs, folds over columns of events and marks (semantics 2 to 5), and clock ticks."""
