"""Decisions about the cluster: (image, request) -> records and a response. Nothing here changes state."""
