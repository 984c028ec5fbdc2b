"""Zigzag varints, as records use them for lengths, counts and deltas.

Seven bits a byte, lowest first, the high bit set on all but the last; 0, -1, 1, -2 become 0, 1, 2, 3. A varint holds 32 bits in
at most five bytes, a varlong 64 bits in at most ten; more is an error, so that no length overflows and no run of high bits is
followed for long.

The decoders of records handle one and two bytes themselves and come here for the rest: a call costs more than the work.
"""

from tidelog.records.errors import InvalidBatch

VARINT_BITS = 32
VARLONG_BITS = 64

# Varints of small non-negative numbers, ready made: nearly all lengths and deltas of a batch are among them.
SMALL_VARINTS_COUNT = 2048


def encode_varint(value: int) -> bytes:
    """Any number of up to 64 bits; varint and varlong differ only in what they may hold."""
    remaining = value << 1 if value >= 0 else ~(value << 1)
    if remaining < 0x80:
        return remaining.to_bytes(1, "big")
    encoded = bytearray()
    while remaining >= 0x80:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


SMALL_VARINTS = tuple(encode_varint(value) for value in range(SMALL_VARINTS_COUNT))


def read_zigzag(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """The number at ``position`` still zigzagged, so that its lowest bit is its sign, and the position after it.

    IndexError when the data ends first: the decoders' loops catch it once, outside.
    """
    zigzag = 0
    shift = 0
    start = position
    while shift < bits:
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            if zigzag >> bits:
                break
            return zigzag, position
        shift += 7
    raise InvalidBatch(f"a number at byte {start} of the records takes more than {bits} bits")
