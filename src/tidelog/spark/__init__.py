"""Topics in Spark, with no jar: ``spark.read.format("tidelog")``, ``spark.readStream``, ``.write`` and ``.writeStream``.

    from tidelog.spark import session

    spark = session()
    rows = spark.read.format("tidelog").option("bootstrap", "127.0.0.1:9092").option("subscribe", "orders").load()

Needs ``tidelog[spark]``. Columns and option names are those of the stock connector (``format("kafka")``). Which options there are
is in ``options``, what Spark calls is in ``data_source``; options, offsets and plans need no Spark and are tested without it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.spark.spark_session import session as session

__all__ = ["session"]


def __getattr__(name: str) -> object:
    """On use: Spark's workers import this package for every task, and need no session."""
    if name != "session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidelog.spark.spark_session import session

    return session
