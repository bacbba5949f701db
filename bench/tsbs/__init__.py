"""A TSBS-shaped load: readings of hosts, queries on them, and who answers these."""
