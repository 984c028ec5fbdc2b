"""Deleting records that are too old or too many, and removing their files."""
