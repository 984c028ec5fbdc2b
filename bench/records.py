"""What the hot paths are made of: the checksum and the reading of headers."""

from fastcrc.crc32 import iscsi

from bench.batches import LARGE_BATCH_BYTES, MEDIUM_BATCH_BYTES, batch_of, joined, one_record_batch
from bench.measure import Figure, Row, seconds_of
from bench.workspace import Workspace
from tidelog.records.header import iterate_headers

ROUNDS = 9
CRC_BYTES = 1 << 28


def run(workspace: Workspace) -> list[Row]:
    rounds = workspace.rounds(ROUNDS)
    rows = []
    for label, size_bytes in (("1 MB", LARGE_BATCH_BYTES), ("16 KB", MEDIUM_BATCH_BYTES)):
        batch = batch_of(size_bytes)
        repeats = workspace.scaled(CRC_BYTES) // size_bytes

        def crc(batch: bytes = batch, repeats: int = repeats) -> None:
            for _ in range(repeats):
                iscsi(batch)

        values = [repeats * len(batch) / 1e9 / seconds_of(crc) for _ in range(rounds)]
        rows.append(Row(f"CRC-32C over {label}", Figure.of(values), "GB/s"))
    data = joined([one_record_batch()], workspace.scaled(1 << 24))
    count = sum(1 for _ in iterate_headers(data))

    def walk() -> None:
        for _ in iterate_headers(data):
            pass

    rows.append(Row("read a batch header", Figure.of([seconds_of(walk) / count * 1e9 for _ in range(rounds)]), "ns"))
    return rows
