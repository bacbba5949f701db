"""`python -m pyspark_timestream peek`: ten records of a topic as the source would read them."""
