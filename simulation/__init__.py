"""Simulated ports: everything follows from one seed."""
