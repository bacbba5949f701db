"""Care of a store: compaction, automatic maintenance, verification, repair, description, rollups."""
