"""Spark adapters: the data source `tseries`, its readers and its writers."""
