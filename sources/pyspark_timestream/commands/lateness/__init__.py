"""`python -m pyspark_timestream lateness`: how many rows would be late by each of many delays."""
