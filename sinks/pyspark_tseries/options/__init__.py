"""The options of writes and reads: frozen dataclasses, and the texts that make them."""
