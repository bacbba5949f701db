"""DataFrame helpers: the watermark driven by CTIs, times changed, rows in order (semantics 11)."""
