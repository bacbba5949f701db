"""Readers of Kafka for Python beside ours, without Spark."""
