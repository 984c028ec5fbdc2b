"""Archives dead letters in a Delta table and reports on them as a page.

``pipeline`` runs it, ``letters`` reads the letters, ``counts`` counts them in Spark, ``report`` judges, ``page`` shows.
"""

from tidelog.spark.pipelines.deadletters.pipeline import EXAMPLE, OPTIONS, SUMMARY, DeadLettersOptions, run

__all__ = ["EXAMPLE", "OPTIONS", "SUMMARY", "DeadLettersOptions", "run"]
