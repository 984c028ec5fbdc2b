"""Decisions about the cluster: (image, request) -> records and a response. Nothing here changes state.

``decision_queue`` runs decisions one after the other. Each other file has the decisions about one subject, which raise
``errors.ApiError`` for what they refuse.
"""
