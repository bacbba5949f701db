"""Care of a store: compaction, maintenance, verification, repair, description, rollups."""
