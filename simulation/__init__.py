"""Simulated ports. One seed determines everything that happens."""
