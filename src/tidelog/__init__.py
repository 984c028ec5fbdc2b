"""Tidelog: one durable log, every way to queue."""
