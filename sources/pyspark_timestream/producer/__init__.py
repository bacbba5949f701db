"""A Kafka producer that puts marks among its records (semantics 4.7); transactions of writes."""
