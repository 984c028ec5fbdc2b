"""Replays a range of an archive into a topic, exactly once.

``pipeline`` runs it, ``plan`` keeps which rows are sent together.
"""

from tidelog.spark.pipelines.replay.pipeline import EXAMPLE, OPTIONS, SUMMARY, ReplayOptions, run

__all__ = ["EXAMPLE", "OPTIONS", "SUMMARY", "ReplayOptions", "run"]
