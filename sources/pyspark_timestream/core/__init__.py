"""The lowest layer: options, instants, offsets, sessions; pyspark_tseries uses it too."""
