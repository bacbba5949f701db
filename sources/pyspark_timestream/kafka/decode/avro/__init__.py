"""Reads Avro payloads: resolves the writer's schema with the reader's, and decodes in columns."""
