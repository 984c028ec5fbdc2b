"""What a run of ``enrich`` counts, without a job of its own: Spark tells with the progress of each batch what it observed."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tidelog.spark.pipelines.archive_schema import BAD
from tidelog.spark.pipelines.enrich_rows import IS_MATCHED
from tidelog.spark.pipelines.pipeline import Reporter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_EVENTS, _JOINED = "events", "joined"


def observe_events(rows: "DataFrame") -> "DataFrame":
    return rows.observe(
        _EVENTS,
        F.count(F.lit(1)).alias("rows"),
        F.count_if(BAD).alias("bad"),
        F.count_if(~F.col(BAD) & F.col("value").isNull()).alias("tombstones"),
    )


def observe_joined(rows: "DataFrame") -> "DataFrame":
    return rows.observe(_JOINED, F.count(F.lit(1)).alias("rows"), F.count_if(~F.col(IS_MATCHED)).alias("unmatched"))


class EnrichCounts:
    """A reporter that counts on the way: whenever there is progress, Spark has the reports of the last hundred batches."""

    def __init__(self, query: "StreamingQuery", reporter: Reporter) -> None:
        self.messages = self.bad = self.tombstones = self.written = self.unmatched = 0
        self._query = query
        self._reporter = reporter
        self._last_batch = -1

    def step(self, text: str) -> None:
        self._reporter.step(text)

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        self._reporter.progress(done, total, unit)
        for report in self._query.recentProgress:
            found = report.observedMetrics
            # A batch that found nothing to do is reported under the number of the next one.
            if report.batchId <= self._last_batch or _EVENTS not in found:
                continue
            self._last_batch = report.batchId
            self.messages += found[_EVENTS]["rows"]
            self.bad += found[_EVENTS]["bad"]
            self.tombstones += found[_EVENTS]["tombstones"]
            self.written += found[_JOINED]["rows"]
            self.unmatched += found[_JOINED]["unmatched"]
