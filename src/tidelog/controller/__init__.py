"""Decisions about the cluster: (image, request) to records and a response."""
