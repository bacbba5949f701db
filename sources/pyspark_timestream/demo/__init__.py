"""`python -m pyspark_timestream demo`: a real Kafka topic within minutes, and a first query."""
