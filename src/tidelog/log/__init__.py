"""The partition log: segments, indexes, producer state, recovery, retention, compaction, group commit."""
