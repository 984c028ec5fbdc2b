"""Committed offsets of one shard's groups: kept, committed, fetched, deleted, expired."""

from tidelog.groups.offsets.store import FetchedOffset, FetchedTopic, OffsetStore

__all__ = ["FetchedOffset", "FetchedTopic", "OffsetStore"]
