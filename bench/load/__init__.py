"""The largest sizes that are promised."""
