"""Compaction: keeping the newest record of each key."""
