"""DataFrame helpers: the watermark driven by CTIs, rows in order of time (semantics 11)."""
