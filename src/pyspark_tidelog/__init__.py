"""Makes ``format("tidelog")`` known to Spark, which looks for ``DefaultSource`` in every top-level module named ``pyspark_*``."""

from tidelog.spark.data_source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
