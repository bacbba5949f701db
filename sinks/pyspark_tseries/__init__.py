"""An append-only time-series store for Spark: format `tseries`."""
