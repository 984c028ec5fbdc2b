"""Benchmarks of the storage engine, as ratios against raw operations on the same disk in the same run: ``python -m bench``."""
