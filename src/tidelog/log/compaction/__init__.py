"""Compaction: keep the latest record of each key. Planned and swapped on the event loop, done in a child process."""
