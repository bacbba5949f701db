"""Values and rules: series, queries, retention, policy, CTIs; no files, no Delta, no Spark."""
