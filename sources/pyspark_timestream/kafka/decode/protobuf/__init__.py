"""Protobuf payloads as columns."""
