"""A store's Delta log and its head, and the one way to add to them."""
