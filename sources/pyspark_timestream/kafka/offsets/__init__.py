"""Pure folds over offsets: what a batch reads, and the state of the stream from batch to batch."""
