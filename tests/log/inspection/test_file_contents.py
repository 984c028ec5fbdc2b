"""Walking batches: what recovery's scan yields, and batches that are larger than the memory that a tool may take."""

import pytest

from tests.log.disks import DIRECTORY, simulated_disk, write_file
from tests.log.harness import batch
from tidelog.log.errors import CorruptLog
from tidelog.log.inspection import file_contents as batch_walk
from tidelog.log.inspection.file_contents import WalkedBatch, walk_batches
from tidelog.log.segments.batch_scan import scan_batches

PATH = f"{DIRECTORY}/00000000000000000000.log"


def walk(data: bytes) -> list[WalkedBatch]:
    disk = simulated_disk()
    write_file(disk, PATH, data)
    return list(walk_batches(disk.open(PATH, "read"), 0, len(data)))


@pytest.mark.parametrize("chunk_bytes", [61, 100, 250, 4096])
def test_it_yields_what_recovery_would_read(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_walk, "WALK_CHUNK_BYTES", chunk_bytes)
    data = b"".join(batch(base_offset=offset, size=80 + 37 * offset) for offset in range(9))
    disk = simulated_disk()
    write_file(disk, PATH, data)
    expected = [
        (position, header, bytes(content)) for position, header, content in scan_batches(disk.open(PATH, "read"), 0, len(data))
    ]
    found = walk(data)
    assert [(item.position, item.header) for item in found] == [(position, header) for position, header, _ in expected]
    assert all(item.crc_is_valid for item in found)
    for item, (_, header, content) in zip(found, expected, strict=True):
        assert (None if item.data is None else bytes(item.data)) == (None if header.size > chunk_bytes else content)


@pytest.mark.parametrize("position", [21, 60, 300, 399])
def test_a_large_batch_has_its_crc_checked_piece_by_piece(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_walk, "WALK_CHUNK_BYTES", 100)
    data = bytearray(batch(size=400))
    data[position] ^= 4
    (found,) = walk(bytes(data))
    assert not found.crc_is_valid


def test_a_length_that_lies_is_not_followed() -> None:
    data = bytearray(batch(size=100) + batch(base_offset=1, size=100))
    data[108] = 0x40
    with pytest.raises(CorruptLog) as caught:
        walk(bytes(data))
    assert caught.value.position == 100
