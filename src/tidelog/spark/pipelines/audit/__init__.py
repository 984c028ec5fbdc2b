"""Compares an archive with its topic.

``pipeline`` decides what is compared, ``rows`` compares it in Spark, ``report`` presents the findings.
"""

from tidelog.spark.pipelines.audit.pipeline import EXAMPLE, OPTIONS, SUMMARY, AuditOptions, run

__all__ = ["EXAMPLE", "OPTIONS", "SUMMARY", "AuditOptions", "run"]
