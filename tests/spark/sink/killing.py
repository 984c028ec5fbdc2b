"""A sink that dies at a given point, once: ``format("tidelog-killing")`` with the options killAt, killOnce and killPids.

``killAt`` is one of POINTS. ``killOnce`` is a file that says, when it is there, that it has happened. ``killPids`` are processes
to kill -9 before its own (Spark's driver); ``executor`` is the one that started it; without it only the Python process that is at
that point dies. With ``waitFor``, instead of killing, it waits until a file of that name is there: for whoever wants to do
something else to the cluster meanwhile.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from tidelog.spark.data_source import TidelogDataSource
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink import column_task
from tidelog.spark.sink.job import SinkJob
from tidelog.spark.sink.rows import check_columns
from tidelog.spark.sink.writers import TaskMessage, TidelogStreamWriter

# In the middle of a task's rows; then the steps of the driver's commit.
POINTS = ("rows", "before_check", "before_record", "after_record", "between_ends", "before_mark", "after_mark")
WAIT_SECONDS_MAX = 120.0
EXECUTOR = "executor"
CHUNK_BYTES = 1_000


class Plan(NamedTuple):
    at: str
    once: str
    pids: tuple[str, ...]
    wait_for: str

    def strike(self) -> None:
        try:
            Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return
        if self.wait_for:
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while not Path(self.wait_for).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            return
        for pid in self.pids:
            os.kill(_executor_pid() if pid == EXECUTOR else int(pid), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _executor_pid() -> int:
    """The process that started the daemon from which this worker was forked."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    pid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
    if pid <= 1:
        raise ProcessLookupError("the executor is gone")  # And 0 would be every process of this group.
    return pid


class KillingDataSource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        given = {name.lower(): value for name, value in dict(self.options).items()}
        pids = tuple(each for each in given.pop("killpids", "").split(",") if each)
        plan = Plan(given.pop("killat"), given.pop("killonce"), pids, given.pop("waitfor", ""))
        _install(plan)
        options = SinkOptions.parse(given)
        return KillingWriter(options, check_columns(schema, options.topic), plan)


class KillingWriter(TidelogStreamWriter):
    def __init__(self, options: SinkOptions, columns: Any, plan: Plan) -> None:
        super().__init__(options, columns)
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        # Few rows at a time, so that half of them are written, in an open transaction, when it strikes.
        column_task.CHUNK_BYTES = CHUNK_BYTES
        return super().write(self._deadly(iterator) if self._plan.at == "rows" else iterator)

    def _deadly(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            self._plan.strike()
            yield batch.slice(half)


_originals: dict[str, Callable[..., Any]] = {}


def _install(plan: Plan) -> None:
    """In this process, which is the driver's for the sink; the plan of the last query holds."""
    for name in ("check", "record", "end_all", "mark_ended"):
        _originals.setdefault(name, getattr(SinkJob, name))

    def striking(point: str, name: str, *, is_after: bool = False) -> None:
        original = _originals[name]

        def step(job: SinkJob, *arguments: Any) -> Any:
            if not is_after and plan.at == point:
                plan.strike()
            result = original(job, *arguments)
            if is_after and plan.at == point:
                plan.strike()
            return result

        setattr(SinkJob, name, step)

    def end_all(job: SinkJob, entry: Any) -> None:
        if plan.at == "between_ends":
            job._coordinators.end_transactions(entry.transactions[:1], is_commit=True)
            plan.strike()
        _originals["end_all"](job, entry)

    striking("before_check", "check")
    striking("before_record" if plan.at == "before_record" else "after_record", "record", is_after=plan.at == "after_record")
    striking("before_mark" if plan.at == "before_mark" else "after_mark", "mark_ended", is_after=plan.at == "after_mark")
    setattr(SinkJob, "end_all", end_all)  # noqa: B010 - an assignment would be taken for a mistake
