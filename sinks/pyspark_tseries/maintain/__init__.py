"""Care of a store: compaction, erasing, backup, verification, repair, wider types, rollups."""
