"""Tidelog beside other brokers: the same work, in one run, at the same durability."""
