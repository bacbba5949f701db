"""The Kafka client: it and `registry.py` alone import confluent_kafka in this transport."""
