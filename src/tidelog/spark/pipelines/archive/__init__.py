"""Archives topics in Delta tables, every message exactly once.

``pipeline`` runs it, ``rows`` has the schema and its columns, ``source`` is the short path for topics without a schema.
"""

from tidelog.spark.pipelines.archive.pipeline import EXAMPLE, OPTIONS, SUMMARY, ArchiveOptions, run

__all__ = ["EXAMPLE", "OPTIONS", "SUMMARY", "ArchiveOptions", "run"]
