"""Topics in Spark, with no jar: ``spark.read.format("tidelog")``, ``spark.readStream``, ``.write`` and ``.writeStream``.

    from tidelog.spark import session

    spark = session()
    rows = spark.read.format("tidelog").option("bootstrap", "127.0.0.1:9092").option("subscribe", "orders").load()

It needs ``tidelog[spark]``. Columns and option names are those of the stock connector (``format("kafka")``). ``options`` lists
the options, and ``data_source`` is what Spark calls; options, offsets and plans need no Spark and are tested without it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.spark.spark_session import session as session

__all__ = ["session"]


def __getattr__(name: str) -> object:
    """Import names on use: Spark's workers import this package for every task, and need no session."""
    if name != "session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidelog.spark.spark_session import session

    return session
