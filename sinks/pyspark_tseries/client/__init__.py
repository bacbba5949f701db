"""The Python client: `TimeSeries`, queries and results, and their commands, without Spark."""
