"""The schema registry's client: the only place that imports confluent_kafka.schema_registry."""
