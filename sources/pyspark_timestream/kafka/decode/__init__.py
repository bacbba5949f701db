"""From a block of records to events, columns and rows."""
