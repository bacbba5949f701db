"""Transport `kafka`: from a topic's records to rows and CTIs, through Spark."""
