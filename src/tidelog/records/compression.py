"""The four compression types of record batches, and decompression that a bomb cannot turn into an out-of-memory kill.

``decompress`` never lets the codec choose how much memory to take. The codec streams into a buffer of fixed size; when the
buffer is full, it starts over with a larger one, until ``size_max``. Starting over is rare (only for data that shrank more than
eightfold) and each round is eight times the one before, so that all failed rounds together cost a seventh of the last one.

What Kafka's clients expect of each stream:

- gzip: one or more members.
- snappy: Java frames raw snappy blocks in xerial's stream format (16-byte header, then a 4-byte length before each block);
  librdkafka sends one raw block. Both are read, xerial is written. A block states its own size, which is checked before any
  memory is taken.
- lz4: frames whose blocks are independent; Java refuses linked blocks.
- zstd: one or more frames, which need not state their size.
"""

from collections.abc import Callable
from enum import IntEnum

import cramjam

from tidelog.ports.disk import Buffer
from tidelog.records.errors import CorruptBatch, DecompressionLimitExceeded, UnsupportedCompression


class CompressionType(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Kafka's default levels. -1 leaves the choice to zlib, whose default is 6; lz4's stands for the fast compressor.
GZIP_LEVEL_DEFAULT = -1
GZIP_LEVEL_OF_ZLIB = 6
LZ4_LEVEL_DEFAULT = 9
LZ4_LEVEL_FAST = 0
ZSTD_LEVEL_DEFAULT = 3

# The first guess of the decompressed size, and how the guess grows: most record data shrinks to no less than an eighth.
_EXPANSION_GUESS = 8
_FIRST_BUFFER_MIN = 4096

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
# The magic, then the writer's version and the oldest version that can read it, both 1.
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_HEADER_SIZE = len(_XERIAL_HEADER)
# The block size of Java's SnappyOutputStream.
_XERIAL_BLOCK_BYTES = 32 * 1024
# At best snappy encodes 64 bytes as a 3-byte copy. A block that claims more states a wrong size.
_SNAPPY_EXPANSION_MAX = 22

# The errors of cramjam when the output buffer is full, and of zstd for a frame that needs a window above 128 MiB.
_OUTPUT_FULL = "failed to write whole buffer"
_WINDOW_TOO_LARGE = "Frame requires too much memory"

_TYPES = tuple(CompressionType)


def compression_type(code: int) -> CompressionType:
    """The type with this code. Raises UnsupportedCompression when Kafka has none."""
    if 0 <= code < len(_TYPES):
        return _TYPES[code]
    raise UnsupportedCompression(f"compression type {code} is not one of 0 to {len(_TYPES) - 1}")


def compress(kind: CompressionType, data: Buffer, level: int | None = None) -> bytes:
    """``data`` as one compressed stream, at the codec's level by Kafka's numbers; snappy has none. None is the default."""
    if kind is CompressionType.NONE:
        return bytes(data)
    if kind is CompressionType.GZIP:
        return bytes(cramjam.gzip.compress(data, level=GZIP_LEVEL_OF_ZLIB if level in (None, GZIP_LEVEL_DEFAULT) else level))
    if kind is CompressionType.SNAPPY:
        return _compress_xerial(data)
    if kind is CompressionType.LZ4:
        lz4_level = LZ4_LEVEL_FAST if level in (None, LZ4_LEVEL_DEFAULT) else level
        compressor = cramjam.lz4.Compressor(level=lz4_level, content_checksum=False, block_linked=False)
        # Unlike the rest of cramjam, the streaming compressor accepts only bytes.
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL_DEFAULT if level is None else level))


def decompress(kind: CompressionType, data: Buffer, size_max: int) -> bytes:
    """The decompressed bytes of ``data``, at most ``size_max`` of them.

    Raises DecompressionLimitExceeded without ever holding more than ``size_max`` decompressed bytes (zstd keeps as much again in
    its window), and CorruptBatch for bytes that are not a stream of this type. Uncompressed data is returned as it is, because it
    cannot grow.
    """
    if kind is CompressionType.NONE:
        return bytes(data)
    if kind is CompressionType.SNAPPY:
        return _decompress_snappy(memoryview(data), size_max)
    return _decompress_stream(kind, _DECOMPRESS_INTO[kind], data, size_max)


_DECOMPRESS_INTO: dict[CompressionType, Callable[[Buffer, bytearray], int]] = {
    CompressionType.GZIP: cramjam.gzip.decompress_into,
    CompressionType.LZ4: cramjam.lz4.decompress_into,
    CompressionType.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_stream(
    kind: CompressionType, decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, size_max: int
) -> bytes:
    capacity = min(size_max, max(_FIRST_BUFFER_MIN, _EXPANSION_GUESS * len(data)))
    while True:
        output = bytearray(capacity)
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            reason = str(error)
            if reason.startswith(_WINDOW_TOO_LARGE):
                raise DecompressionLimitExceeded(f"{kind.name.lower()}: {reason}") from None
            if reason != _OUTPUT_FULL:
                raise CorruptBatch(f"{len(data)} bytes are not a {kind.name.lower()} stream: {reason}") from None
            if capacity == size_max:
                raise _limit_exceeded(kind, len(data), size_max) from None
            # Free the buffer before the next one is allocated: there are never two at a time.
            del output
            capacity = min(size_max, capacity * _EXPANSION_GUESS)
            continue
        return bytes(memoryview(output)[:size])


def _limit_exceeded(kind: CompressionType, compressed_size: int, size_max: int) -> DecompressionLimitExceeded:
    return DecompressionLimitExceeded(
        f"{compressed_size} bytes of {kind.name.lower()} grow to more than the {size_max} bytes that are allowed"
    )


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return bytes(_decompress_snappy_block(data, size_max, len(data), size_max))
    blocks: list[bytearray] = []
    room = size_max
    position = 0
    while position < len(data):
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # The start of the data, or of another stream appended to it.
            position += _XERIAL_HEADER_SIZE
            if position > len(data):
                raise CorruptBatch(f"a xerial header takes {_XERIAL_HEADER_SIZE} bytes, and the data ends within it")
            continue
        block_start = position + 4
        block_end = block_start + int.from_bytes(data[position:block_start], "big")
        if block_end > len(data) or block_start > len(data):
            raise CorruptBatch(f"a snappy block at {position} ends at {block_end}, past the {len(data)} bytes that there are")
        block = _decompress_snappy_block(data[block_start:block_end], room, len(data), size_max)
        blocks.append(block)
        room -= len(block)
        position = block_end
    return b"".join(blocks)


def _decompress_snappy_block(block: memoryview, room: int, compressed_size: int, size_max: int) -> bytearray:
    """Decompress one raw block, which must not be larger than ``room``. The codec checks that it has the size that it claims."""
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > _SNAPPY_EXPANSION_MAX * len(block):
            raise CorruptBatch(f"a snappy block of {len(block)} bytes cannot hold the {size} bytes that it claims")
        if size > room:
            raise _limit_exceeded(CompressionType.SNAPPY, compressed_size, size_max)
        output = bytearray(size)
        cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"{len(block)} bytes are not a snappy block: {error}") from None
    return output
