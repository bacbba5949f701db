"""A Spark session as these formats need it: settings, the Python of its workers, their PySpark."""
