"""Values and rules: series, queries, retention, policy; no files, no Delta, no Spark."""
