"""Materializes a keyed topic as a Delta table of the newest row per key.

``pipeline`` runs it, ``batches`` merges each micro-batch.
"""

from tidelog.spark.pipelines.materialize.pipeline import EXAMPLE, OPTIONS, SUMMARY, MaterializeOptions, run

__all__ = ["EXAMPLE", "OPTIONS", "SUMMARY", "MaterializeOptions", "run"]
