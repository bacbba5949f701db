"""`python -m pyspark_tseries browse`: a store's series, edits and upkeep, live and read-only."""
