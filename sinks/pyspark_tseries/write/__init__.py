"""From a batch of rows to numbered events in files."""
