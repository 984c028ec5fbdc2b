"""A metadata log that Apache Kafka 4.3 wrote, and what its admin client said about it; made by ``make_fixture.py``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.records.batch import read_records
from tidelog.records.header import iterate_headers

_DIRECTORY = Path(__file__).parent / "fixtures"
LOG_PATH = _DIRECTORY / "cluster-metadata.log"
QUORUM_STATE_PATH = _DIRECTORY / "quorum-state"
EXPECTED_PATH = _DIRECTORY / "expected.json"


class FixtureBatch(NamedTuple):
    is_control: bool
    last_offset: int
    leader_epoch: int
    values: list[bytes]


def read_batches() -> Iterator[FixtureBatch]:
    data = LOG_PATH.read_bytes()
    for position, header in iterate_headers(data):
        records = read_records(data, position, header, size_max=1 << 20, count_max=1000)
        yield FixtureBatch(
            header.is_control, header.last_offset, header.leader_epoch, [record.value or b"" for record in records]
        )


def read_expected() -> dict[str, Any]:
    expected: dict[str, Any] = json.loads(EXPECTED_PATH.read_text())
    return expected
