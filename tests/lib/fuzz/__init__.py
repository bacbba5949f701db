"""A fuzzer: hostile options, descriptors, schemas, records, headers and stored files."""
