"""Dump, verify and repair a data directory without a broker."""
