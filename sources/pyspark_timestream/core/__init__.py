"""The lowest layer: options, instants, offsets, sessions, pages; pyspark_tseries uses it too."""
