"""The error behind Spark's: texts as Spark 4.3 makes them, shortened."""

import pytest

from tidelog.client.errors import BrokerUnavailable, InvalidArgument, TidelogError
from tidelog.client.fetch.errors import OffsetsLost
from tidelog.spark.pipelines.failures import SparkGaveUp, error_behind, from_text
from tidelog.spark.pipelines.pipeline import PipelineFailed
from tidelog.spark.tables.errors import WrongSchema

STREAM = "[STREAM_FAILED] Query [id = 9ba4, runId = 103e] terminated with exception: "
STATE = "\n=== Streaming Query ===\nIdentifier: [id = 9ba4]\nCurrent Committed Offsets: {}\n"
FRAME = '  File "stream_plan.py", line 60, in initial\n    catalogue = look(self._client())\n                ^^^^^^^^^^^\n'
TRACEBACK = f"Traceback (most recent call last):\n{FRAME}"

OF_SOURCE = (
    f"{STREAM}[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform initialOffset: "
    f"{TRACEBACK}tidelog.client.wire.errors.BrokerUnreachable: connection refused\n\n"
    f"The above exception was the direct cause of the following exception:\n\n{TRACEBACK}"
    f"tidelog.client.errors.BrokerUnavailable: topics: no broker answers at 127.0.0.1:1: check the address\n"
    f" SQLSTATE: 38000 SQLSTATE: XXKST{STATE}"
)
OF_FOREACH_BATCH = (
    f"{STREAM}[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. "
    f"Reason: An exception was raised by the Python Proxy. Return Message: {TRACEBACK}"
    f"tidelog.spark.tables.errors.WrongSchema: column a: is one,\nnot the other\n SQLSTATE: 39000 SQLSTATE: XXKST{STATE}"
)
OF_BATCH = (
    f"[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: {TRACEBACK}"
    "tidelog.client.errors.InvalidArgument: the source has no option bootstrapp: did you mean bootstrap?\n SQLSTATE: 38000"
)
OF_FOREIGN_CODE = (
    f"{STREAM}[PYTHON_EXCEPTION] An exception was thrown: {TRACEBACK}OSError: [Errno 28] No space left on device{STATE}"
)
OF_SPARK = f"{STREAM}[USER_RAISED_EXCEPTION] x is too large SQLSTATE: P0001 SQLSTATE: XXKST{STATE}"
OF_ANALYSIS = "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703;\n'Project\n"
OF_A_LOST_CLASS = f"{TRACEBACK}tidelog.spark.no_such_module.Gone: it is gone\n SQLSTATE: 38000"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (OF_SOURCE, BrokerUnavailable, "topics: no broker answers at 127.0.0.1:1: check the address"),
        (OF_FOREACH_BATCH, WrongSchema, "column a: is one, not the other"),
        (OF_BATCH, InvalidArgument, "the source has no option bootstrapp: did you mean bootstrap?"),
        (OF_FOREIGN_CODE, SparkGaveUp, "Spark gave up: OSError: [Errno 28] No space left on device"),
        (OF_SPARK, SparkGaveUp, "Spark gave up: x is too large"),
        (OF_ANALYSIS, SparkGaveUp, "Spark gave up: A column with name `nope` cannot be resolved."),
        (OF_A_LOST_CLASS, PipelineFailed, "it is gone"),
        ("", SparkGaveUp, "Spark gave up: "),
    ],
)
def test_error_is_typed_again_in_one_line(text: str, kind: type[TidelogError], message: str) -> None:
    found = from_text(text)
    assert type(found) is kind
    assert str(found) == message


def test_what_is_ours_already_stays() -> None:
    error = InvalidArgument("as it is")
    assert error_behind(error) is error


def test_errors_that_are_made_from_other_things_than_a_message() -> None:
    found = from_text("tidelog.client.fetch.errors.OffsetsLost: orders[0]: offsets 3 to 9 are lost")
    assert type(found) is OffsetsLost
    assert str(found) == "orders[0]: offsets 3 to 9 are lost"


def test_every_error_of_ours_can_be_typed_again() -> None:
    kinds, found = [TidelogError], []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        found.append(kind)
    named = [kind for kind in found if kind.__module__.startswith("tidelog.") and "<" not in kind.__qualname__]
    assert len(named) > 15
    for kind in named:
        assert type(from_text(f"{kind.__module__}.{kind.__name__}: a reason")) is kind
