"""What it costs to validate a client's batch before it is appended: the walk over its records, and the codec if there is one.

Records of one shape are checked in runs; records whose sizes differ are walked one by one. Producers send both, so both are
measured. A batch of ten thousand records of 100 bytes is what a busy producer sends; one of one record is the other end.
"""

from collections.abc import Callable
from random import Random
from time import thread_time

from bench.measure import Figure, Row
from bench.workspace import Workspace
from tidelog.log.append_check import validate_batch
from tidelog.log.settings import LogSettings
from tidelog.records.batch import build_batch
from tidelog.records.compression import CompressionType
from tidelog.records.record import Record

ROUNDS = 9
RECORDS = 10_000
RECORD_BYTES = 100
NOW_MS = 1_704_067_200_000
SETTINGS = LogSettings(message_bytes_max=10_000_000)


def _processor_seconds(work: Callable[[], None]) -> float:
    start = thread_time()
    work()
    return thread_time() - start


def run(workspace: Workspace) -> list[Row]:
    rounds = workspace.rounds(ROUNDS)
    random = Random(1)
    equal = [RECORD_BYTES] * RECORDS
    different = [random.randint(RECORD_BYTES // 2, RECORD_BYTES * 3 // 2) for _ in range(RECORDS)]
    none, zstd = CompressionType.NONE, CompressionType.ZSTD
    cases = (
        ("1 record of 100 B", equal[:1], none, 1_000),
        ("10,000 records of 100 B", equal, none, 10),
        ("10,000 records of 50 to 150 B", different, none, 1),
        ("10,000 records of 100 B, zstd", equal, zstd, 5),
    )
    rows = []
    for label, sizes, codec, repeats in cases:
        records = [
            Record(number, NOW_MS + number // 1_000, None, random.randbytes(size // 2) * 2) for number, size in enumerate(sizes)
        ]
        batch = memoryview(build_batch(records, compression=codec))

        def validate(batch: memoryview = batch, repeats: int = repeats) -> None:
            for _ in range(repeats):
                validate_batch(batch, SETTINGS, NOW_MS)

        seconds = [_processor_seconds(validate) / repeats for _ in range(rounds)]
        rows.append(Row(f"validate {label}", Figure.of([each * 1e6 for each in seconds]), "us"))
        if len(sizes) > 1:
            rows.append(Row("  of that, a record", Figure.of([each / len(sizes) * 1e9 for each in seconds]), "ns"))
    return rows
