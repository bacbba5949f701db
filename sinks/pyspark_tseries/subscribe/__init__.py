"""Subscriptions: the position of a subscriber, and the events it gets next."""
