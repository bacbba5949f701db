"""The Python client: `TimeSeries`, queries and results, without Spark."""
