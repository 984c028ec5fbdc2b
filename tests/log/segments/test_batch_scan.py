"""Walking headers and batches: all of them, no more reads than needed, and the first damaged byte named."""

import pytest

from simulation.disk import SimulatedDisk
from tests.log.disks import DIRECTORY, simulated_disk, write_file
from tests.log.harness import batch
from tidelog.log.errors import CorruptLog
from tidelog.log.segments.batch_scan import SCAN_CHUNK_BYTES, scan_batches, scan_headers
from tidelog.ports.disk import DiskFile

PATH = f"{DIRECTORY}/log"
SIZES = [100, 61 + 20, 5000, 200, 4096, 90, 100_000, 150]


def stored(data: bytes) -> tuple[SimulatedDisk, DiskFile]:
    disk = simulated_disk()
    write_file(disk, PATH, data)
    return disk, disk.open(PATH, "read")


def batches() -> tuple[bytes, list[tuple[int, int]]]:
    """Batches of very different sizes, and (position, base offset) of each."""
    data = b""
    places = []
    for offset, size in enumerate(SIZES):
        places.append((len(data), offset))
        data += batch(base_offset=offset, size=size)
    return data, places


@pytest.mark.parametrize("chunk_bytes", [61, 100, 4096, 1 << 20])
def test_every_header_is_found_whatever_the_chunk(chunk_bytes: int) -> None:
    data, places = batches()
    _, file = stored(data)
    found = [(position, header.base_offset) for position, header in scan_headers(file, 0, len(data), chunk_bytes)]
    assert found == places
    later = scan_headers(file, places[3][0], len(data), chunk_bytes)
    assert [(position, header.base_offset) for position, header in later] == places[3:]


def test_whole_batches_are_handed_out() -> None:
    data, places = batches()
    data += batch(base_offset=len(SIZES), size=SCAN_CHUNK_BYTES + 5000) + batch(base_offset=len(SIZES) + 1)
    _, file = stored(data)
    found = list(scan_batches(file, 0, len(data)))
    assert [(position, header.base_offset) for position, header, _ in found][: len(places)] == places
    assert b"".join(whole for _, _, whole in found) == data


def test_large_bodies_are_stepped_over_without_reading_them() -> None:
    data = b"".join(batch(base_offset=offset, size=100_000) for offset in range(10))
    _, file = stored(data)
    read = 0

    class Counting:
        path = PATH

        def read(self, position: int, length: int) -> bytes:
            nonlocal read
            read += length
            return file.read(position, length)

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

    assert len(list(scan_headers(Counting(), 0, len(data), 4096))) == 10  # type: ignore[arg-type]  # the rest is never asked for
    assert read <= 10 * 4096


def test_small_batches_come_out_of_one_read() -> None:
    data = b"".join(batch(base_offset=offset, size=100) for offset in range(40))
    disk, file = stored(data)
    reads: list[str] = []

    def note(path: str) -> bool:
        reads.append(path)
        return False

    disk.faults.fail("read", note)
    assert len(list(scan_headers(file, 0, len(data), 4096))) == 40
    assert len(reads) == 1


@pytest.mark.parametrize("scan", [lambda f, s, e: scan_headers(f, s, e, 4096), scan_batches])
def test_the_end_is_respected(scan: object) -> None:
    assert callable(scan)
    data, places = batches()
    _, file = stored(data)
    assert len(list(scan(file, 0, places[2][0]))) == 2
    assert list(scan(file, len(data), len(data))) == []


@pytest.mark.parametrize("scan", [lambda f, s, e: scan_headers(f, s, e, 4096), scan_batches])
@pytest.mark.parametrize("damage", ["cut off", "zeros", "old format", "short header"])
def test_the_first_damaged_byte_is_named(scan: object, damage: str) -> None:
    assert callable(scan)
    good = batch(base_offset=0, size=100)
    bad = {
        "cut off": batch(base_offset=1, size=100)[:-1],
        "zeros": bytes(100),
        "old format": bytes(11) + b"\x40" + bytes(4) + b"\x01" + bytes(100),
        "short header": b"\x01" * 30,
    }[damage]
    _, file = stored(good + bad)
    found = scan(file, 0, len(good + bad))
    assert next(found)[0] == 0
    with pytest.raises(CorruptLog) as caught:
        next(found)
    assert (caught.value.path, caught.value.position) == (PATH, 100)
