"""Errors carry their numbers, in the message and for the caller."""

from tidelog.log.errors import CorruptLog, LogOffline, OffsetOutOfRange


def test_offset_out_of_range_says_what_there_is() -> None:
    error = OffsetOutOfRange(7, 10, 20)
    assert (error.requested, error.start, error.end) == (7, 10, 20)
    assert str(error) == "offset 7 is out of range: the log has offsets from 10 up to, not including, 20"


def test_log_offline_names_the_partition() -> None:
    error = LogOffline("orders-3", "fdatasync failed")
    assert (error.partition, error.reason) == ("orders-3", "fdatasync failed")
    assert str(error) == "orders-3 is offline: fdatasync failed"


def test_corrupt_log_says_which_file_and_byte() -> None:
    error = CorruptLog("orders-3/00000000000000000000.log", 4096, 51, "bad CRC")
    assert (error.path, error.position, error.offset, error.reason) == ("orders-3/00000000000000000000.log", 4096, 51, "bad CRC")
    assert str(error) == "orders-3/00000000000000000000.log is corrupt at byte 4096, near offset 51: bad CRC"
    assert str(CorruptLog("a.log", 0, None, "short")) == "a.log is corrupt at byte 0: short"
