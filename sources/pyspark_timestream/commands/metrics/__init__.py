"""`TimeMetrics`: the time of running queries as numbers, for Prometheus and OpenTelemetry."""
