"""`python -m pyspark_timestream watch`: the time of queries, live, from their checkpoints alone."""
