"""Streams as each client writes them, garbage, and bombs."""

import gzip
import subprocess
import sys
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.strategies import compressions, without_deadline
from tidelog.records.compression import CompressionType, compress, compression_type, decompress
from tidelog.records.errors import CorruptBatch, DecompressionLimitExceeded, RecordError, UnsupportedCompression

CODECS = [kind for kind in CompressionType if kind is not CompressionType.NONE]
TEXT = b"the quick brown fox jumps over the lazy dog, " * 100
XERIAL_HEADER = bytes.fromhex("82534e4150505900 00000001 00000001")
MEBIBYTE = 1024 * 1024


def xerial(*blocks: bytes) -> bytes:
    raw = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return XERIAL_HEADER + b"".join(len(block).to_bytes(4, "big") + block for block in raw)


@without_deadline
@given(compressions, st.binary(max_size=2000) | st.integers(0, 200_000).map(lambda size: b"ab" * size))
def test_round_trip(kind: CompressionType, data: bytes) -> None:
    compressed = compress(kind, data)
    assert decompress(kind, compressed, len(data)) == data
    assert decompress(kind, memoryview(compressed), 10 * MEBIBYTE) == data
    assert compress(kind, bytearray(data)) == compressed == compress(kind, memoryview(data))


def test_codes() -> None:
    assert [compression_type(code) for code in range(5)] == list(CompressionType)
    for code in (-1, 5, 7):
        with pytest.raises(UnsupportedCompression, match=str(code)):
            compression_type(code)


@pytest.mark.parametrize("kind", CODECS)
def test_several_streams_in_a_row_are_one(kind: CompressionType) -> None:
    data = compress(kind, TEXT) + compress(kind, b"") + compress(kind, b"end")
    assert decompress(kind, data, len(TEXT) + 3) == TEXT + b"end"


@pytest.mark.parametrize("kind", CODECS)
def test_the_limit_is_exact(kind: CompressionType) -> None:
    for size in (1, 5000, 70_000):
        data = compress(kind, bytes(size))
        assert decompress(kind, data, size) == bytes(size)
        with pytest.raises(DecompressionLimitExceeded, match=f"more than the {size - 1} bytes"):
            decompress(kind, data, size - 1)


def test_uncompressed_data_has_no_limit() -> None:
    assert decompress(CompressionType.NONE, bytearray(b"abc"), 0) == b"abc"


@pytest.mark.parametrize(("kind", "default"), [(CompressionType.GZIP, 6), (CompressionType.ZSTD, 3)])
def test_levels(kind: CompressionType, default: int) -> None:
    data = b"".join(TEXT[number * 7919 % 40 :][: number % 13] for number in range(5000))
    quick, small = compress(kind, data, 1), compress(kind, data, 9)
    assert quick != small
    assert decompress(kind, quick, len(data)) == decompress(kind, small, len(data)) == data
    assert compress(kind, data) == compress(kind, data, default) != quick


def test_gzip_of_the_standard_library_is_read() -> None:
    assert decompress(CompressionType.GZIP, gzip.compress(TEXT), len(TEXT)) == TEXT
    assert gzip.decompress(compress(CompressionType.GZIP, TEXT)) == TEXT


@pytest.mark.parametrize("size", [0, 10, 64 * 1024, 300 * 1024])
def test_lz4_blocks_are_independent(size: int) -> None:
    """Bit 5 of the frame's flags; Java's reader refuses a frame without it."""
    frame = compress(CompressionType.LZ4, TEXT[:10] * (size // 10))
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0xE0 == 0x60


def test_lz4_frames_with_linked_blocks_and_checksums_are_read() -> None:
    compressor = cramjam.lz4.Compressor(level=0, content_checksum=True, block_linked=True)
    compressor.compress(TEXT * 40)
    frame = bytes(compressor.finish())
    assert not frame[4] & 0x20
    assert decompress(CompressionType.LZ4, frame, 10 * MEBIBYTE) == TEXT * 40


def test_zstd_without_a_content_size_is_read() -> None:
    compressor = cramjam.zstd.Compressor(3)
    compressor.compress(TEXT)
    frame = bytes(compressor.finish())
    assert frame[4] & 0xE0 == 0, "neither a content size nor a single segment"
    assert decompress(CompressionType.ZSTD, frame, len(TEXT)) == TEXT


def test_snappy_is_written_in_blocks_of_32_kibibytes() -> None:
    data = TEXT * 20
    assert compress(CompressionType.SNAPPY, data) == xerial(data[:32768], data[32768:65536], data[65536:])
    assert compress(CompressionType.SNAPPY, b"") == XERIAL_HEADER


def test_snappy_raw_and_joined_xerial_streams_are_read() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert decompress(CompressionType.SNAPPY, raw, len(TEXT)) == TEXT
    assert decompress(CompressionType.SNAPPY, xerial(b"ab", b"c") + xerial() + xerial(b"d"), 4) == b"abcd"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are not a snappy block"),
        (XERIAL_HEADER[:8], "ends within it"),
        (XERIAL_HEADER[:15], "ends within it"),
        (XERIAL_HEADER + b"\x00\x00\x00", "block at 16 ends at 20, past the 19 bytes"),
        (XERIAL_HEADER + b"\x00\x00\x00\x05abcd", "block at 16 ends at 25, past the 24 bytes"),
        (XERIAL_HEADER + b"\xff\xff\xff\xffabcd", "block at 16 ends at 4294967315, past the 24 bytes"),
        (xerial(TEXT)[:-1], "past the"),
        (xerial(TEXT) + b"\x00", "past the"),
        # A raw block that claims six bytes and holds three.
        (XERIAL_HEADER + b"\x00\x00\x00\x05\x06\x08abc", "5 bytes are not a snappy block"),
    ],
)
def test_broken_xerial_framing(data: bytes, message: str) -> None:
    with pytest.raises(CorruptBatch, match=message):
        decompress(CompressionType.SNAPPY, data, MEBIBYTE)


@pytest.mark.parametrize("kind", CODECS)
def test_every_cut_of_a_stream_is_corrupt(kind: CompressionType) -> None:
    data = compress(kind, TEXT[:60])
    # A xerial header alone is a stream of nothing.
    cuts = [cut for cut in range(len(data)) if not (kind is CompressionType.SNAPPY and cut == len(XERIAL_HEADER))]
    for cut in cuts:
        with pytest.raises(CorruptBatch):
            decompress(kind, data[:cut], MEBIBYTE)


@pytest.mark.parametrize("kind", CODECS)
def test_junk_after_a_stream_is_corrupt(kind: CompressionType) -> None:
    with pytest.raises(CorruptBatch):
        decompress(kind, compress(kind, TEXT) + b"junk and more junk", MEBIBYTE)


@without_deadline
@given(compressions, st.binary(max_size=200), st.integers(0, 1000))
def test_garbage_gives_only_record_errors(kind: CompressionType, data: bytes, size_max: int) -> None:
    try:
        decompressed = decompress(kind, data, size_max)
    except RecordError:
        return
    assert len(decompressed) <= size_max or kind is CompressionType.NONE


@without_deadline
@given(st.sampled_from(CODECS), st.data())
def test_a_damaged_stream_gives_only_record_errors(kind: CompressionType, data: st.DataObject) -> None:
    stream = bytearray(compress(kind, TEXT))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RecordError):
        assert len(decompress(kind, stream, MEBIBYTE)) <= MEBIBYTE


def test_a_snappy_block_that_claims_more_than_snappy_can_do() -> None:
    with pytest.raises(CorruptBatch, match="4294967295"):
        decompress(CompressionType.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20), 1 << 40)


def test_a_zstd_window_beyond_reason_exceeds_the_limit() -> None:
    frame = bytes.fromhex("28b52ffd 00 f8 010000")
    with pytest.raises(DecompressionLimitExceeded, match="too much memory"):
        decompress(CompressionType.ZSTD, frame, 1 << 40)


def zstd_bomb() -> bytes:
    """16 KiB that grow to 512 MiB: blocks that say "128 KiB of the same byte" in four bytes, behind a window of 128 MiB."""
    block = (131_072 << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    last_block = (1 << 1 | 1).to_bytes(3, "little") + b"\x00"
    return bytes.fromhex("28b52ffd") + bytes([0, 17 << 3]) + block * 4096 + last_block


BOMBS = {
    CompressionType.GZIP: lambda: compress(CompressionType.GZIP, bytes(32 * MEBIBYTE)) * 32,
    CompressionType.SNAPPY: lambda: compress(CompressionType.SNAPPY, bytes(32 * MEBIBYTE)) * 32,
    CompressionType.LZ4: lambda: compress(CompressionType.LZ4, bytes(32 * MEBIBYTE)) * 32,
    CompressionType.ZSTD: zstd_bomb,
}
BOMB_LIMIT_BYTES = 16 * MEBIBYTE
# In a process of its own, whose peak of resident memory the kernel keeps: what a codec takes is not seen by tracemalloc.
BOMB_SCRIPT = """
import sys
from tidelog.records.compression import CompressionType, decompress
from tidelog.records.errors import DecompressionLimitExceeded

def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

bomb = sys.stdin.buffer.read()
before = peak_bytes()
try:
    decompress(CompressionType[sys.argv[1]], bomb, int(sys.argv[2]))
except DecompressionLimitExceeded:
    print(peak_bytes() - before)
"""


@pytest.mark.parametrize("kind", CODECS)
def test_a_bomb_takes_no_more_memory_than_allowed(kind: CompressionType) -> None:
    arguments = [sys.executable, "-c", BOMB_SCRIPT, kind.name, str(BOMB_LIMIT_BYTES)]
    child = subprocess.run(arguments, input=BOMBS[kind](), stdout=subprocess.PIPE, check=True)
    # The output, and at most as much again for the codec's own window.
    assert int(child.stdout) < 2 * BOMB_LIMIT_BYTES + 8 * MEBIBYTE
