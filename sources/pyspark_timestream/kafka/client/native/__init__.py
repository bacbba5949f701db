"""Records from librdkafka's C interface into Arrow columns, without an object per record."""
