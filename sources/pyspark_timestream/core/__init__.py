"""The lowest layer: options, instants, offsets, sessions, errors; pyspark_tseries uses it too."""
