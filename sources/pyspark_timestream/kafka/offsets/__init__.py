"""Pure folds over offsets: what a batch reads, and what the stream does after what it did."""
