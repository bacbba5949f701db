"""Nexmark: six queries over auctions, by Spark's Kafka source, Flink and ours, and by DuckDB."""
