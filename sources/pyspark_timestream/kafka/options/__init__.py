"""The options of transport `kafka` and what their texts stand for."""
