"""Application time for Spark streams: format `timestream`."""
