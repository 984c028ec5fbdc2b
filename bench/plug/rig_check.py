"""Before any server is judged, the disk itself: it keeps what was synced, and loses what it may lose."""

import os
from random import Random

from bench.plug.disk import MEBIBYTE, CannotCutPower, PowerCutDisk, Unflushed, sync_file_range

ATTEMPTS = 5


def check_rig(disk: PowerCutDisk) -> None:
    """A disk that keeps more than a power cut would makes every server look good: then nothing is measured.

    The journal of ext4 flushes by itself every few seconds, which may fall between a write and the picture; so a disk that
    kept what it may lose gets further attempts.
    """
    found: list[str] = []
    for attempt in range(ATTEMPTS):
        disk.renew()
        found = _surprises(disk, Random(attempt))
        if not found:
            return
    raise CannotCutPower(f"the disk of the experiment does not behave as a drive with a volatile cache: {'; '.join(found)}")


def _surprises(disk: PowerCutDisk, random: Random) -> list[str]:
    synced, submitted, written = disk.data / "synced", disk.data / "submitted", disk.data / "written"
    old, new = bytes(MEBIBYTE), b"n" * MEBIBYTE
    for path in (synced, submitted):
        with path.open("wb", buffering=0) as file:
            file.write(old)
            os.fsync(file.fileno())
    with synced.open("r+b", buffering=0) as file:
        file.write(new)
        os.fdatasync(file.fileno())
    with submitted.open("r+b", buffering=0) as file:
        file.write(new)
        # It has reached the drive, and nobody has asked the drive to keep it.
        sync_file_range(file.fileno(), 0, MEBIBYTE)
    written.write_bytes(new)
    disk.picture(random, Unflushed.NOTHING)
    disk.restore()
    surprises = []
    if synced.read_bytes() != new:
        surprises.append("data that was synced is gone")
    if submitted.read_bytes() != old:
        surprises.append("data that was never flushed from the drive's cache is there")
    if written.exists() and written.read_bytes() == new:
        surprises.append("data that was never synced is there")
    return surprises
