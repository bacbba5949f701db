"""`python -m pyspark_tseries browse`: a store's series, edits and maintenance, live."""
