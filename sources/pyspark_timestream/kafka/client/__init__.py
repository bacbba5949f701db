"""The Kafka client: the only place of this transport that imports confluent_kafka."""
