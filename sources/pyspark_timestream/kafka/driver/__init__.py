"""State and broker queries of a running query in the driver, apart from its offsets."""
