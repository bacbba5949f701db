"""DataFrame helpers: the watermark driven by CTIs, times changed, order, windows (semantics 11)."""
