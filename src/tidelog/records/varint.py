"""Zigzag varints, as records use them for lengths, counts and deltas.

Seven bits a byte, lowest first, the high bit set on all but the last; 0, -1, 1, -2 become 0, 1, 2, 3. A varint holds 32 bits in
at most five bytes, a varlong 64 bits in at most ten; more is an error, so that no length overflows and no run of high bits is
followed for long.

Numbers of one and two bytes are nearly all there are and come first; the busiest decoder reads those in place.
"""

from tidelog.records.errors import InvalidBatch

VARINT_BITS = 32
VARLONG_BITS = 64

# Precomputed varints of small non-negative numbers: nearly all lengths and deltas of a batch are among them.
SMALL_VARINTS_COUNT = 2048


def encode_varint(value: int) -> bytes:
    """Encode a number of up to 64 bits; varint and varlong differ only in their range."""
    remaining = value << 1 if value >= 0 else ~(value << 1)
    if remaining >> VARLONG_BITS:
        raise InvalidBatch(f"{value} takes more than {VARLONG_BITS} bits")
    encoded = bytearray()
    while remaining >= 0x80:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


SMALL_VARINTS = tuple(encode_varint(value) for value in range(SMALL_VARINTS_COUNT))


def read_zigzag(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """The zigzag-encoded number at ``position``, whose lowest bit is its sign, and the position after it.

    Raises IndexError when the data ends first: the decoders catch it once, outside of their loops.
    """
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    second = data[position + 1]
    if second < 0x80:
        return byte + (second << 7) - 0x80, position + 2
    start = position
    zigzag = byte + (second << 7) - 0x4080
    position += 2
    for shift in range(14, bits, 7):
        byte = data[position]
        position += 1
        if byte < 0x80:
            zigzag += byte << shift
            if zigzag >> bits:
                break
            return zigzag, position
        zigzag += (byte - 0x80) << shift
    raise InvalidBatch(f"a number at byte {start} of the records takes more than {bits} bits")
