"""Slices of files in responses: intact, warm or cold, and the end of the connection where the file does not give them."""

import os
import random
from pathlib import Path

import pytest

from tests.server.harness import MIB, RunningServer, wait_until
from tidelog.ports.real_disk import RealDisk

# What was just written or read is in the page cache, unless the kernel took it out again at this moment.
TRIES = 5


@pytest.fixture
def data(running: RunningServer, tmp_path: Path) -> bytes:
    """The bytes of the broker's file."""
    content = random.Random(5).randbytes(MIB) * 51
    path = tmp_path / "segment.log"
    path.write_bytes(content)
    running.broker.file = RealDisk().open(str(path), "read")
    os.fsync(running.broker.file.descriptor())
    return content


@pytest.mark.parametrize("length", [1, 2, 4095, 4096, 4097, 65_536, 524_288, 524_289, MIB, 10 * MIB + 7, 50 * MIB])
@pytest.mark.parametrize("is_cold", [False, True])
def test_slices_arrive_intact(running: RunningServer, data: bytes, length: int, is_cold: bool) -> None:
    assert running.broker.file is not None
    if is_cold:
        RealDisk().drop_cache(running.broker.file.path)
    cold_reads = []
    with running.client() as client:
        for _ in range(TRIES):
            before = running.server.hub.cold_reads
            client.send(b"echo before", b"both 12345 %d" % length, b"slice 7 %d" % length, b"echo after")
            assert client.receive() == b"echo before"
            assert client.receive() == b"<" + data[12345 : 12345 + length] + b">"
            assert client.receive() == data[7 : 7 + length]
            assert client.receive() == b"echo after"
            cold_reads.append(running.server.hub.cold_reads - before)
            if not cold_reads[-1]:
                break
    if is_cold and length > MIB:
        assert cold_reads[0] > 0
    if not is_cold:
        assert cold_reads[-1] == 0


def test_a_large_slice_does_not_hold_up_others(running: RunningServer, data: bytes) -> None:
    with running.client() as greedy, running.client() as other:
        greedy.send(b"slice 0 %d" % (50 * MIB))
        assert other.ask(b"echo hello") == b"echo hello"
        assert greedy.receive() == data[: 50 * MIB]


def test_a_slice_of_a_file_that_was_cut_ends_the_connection(running: RunningServer, data: bytes) -> None:
    assert running.broker.file is not None
    os.truncate(running.broker.file.path, 1000)
    with running.client() as client:
        client.send(b"slice 0 2000")
        with pytest.raises(EOFError):
            client.receive()
    wait_until(lambda: len(running.reasons) == 1)
    assert "ends before byte 1000" in running.reasons[0]


def test_a_disk_that_cannot_read_ends_the_connection(
    running: RunningServer, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tidelog.server.connection.read_ahead", fail)
    monkeypatch.setattr("tidelog.server.outbox.is_cached", lambda *_: False)
    with running.client() as client:
        client.send(b"slice 0 2000")
        with pytest.raises(EOFError):
            client.receive()
    wait_until(lambda: len(running.reasons) == 1)
    assert "Input/output error" in running.reasons[0]
