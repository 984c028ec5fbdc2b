"""A compacted topic as a dictionary: ``Table("customers")``."""

from tidelog.client.table.storage import TableStorageError
from tidelog.client.table.table import Table

__all__ = ["Table", "TableStorageError"]
