"""`explain_time`: why a query does not emit or loses rows, from its history."""
