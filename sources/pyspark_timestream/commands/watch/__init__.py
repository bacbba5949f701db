"""`python -m pyspark_timestream watch`: the time of queries, live, from only their checkpoints."""
