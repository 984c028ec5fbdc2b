"""What was finished above a committed offset, as the metadata of that commit: run lengths.

    tidelog:1:<base64 of varints: gap, length, gap, length, ...>

The first gap counts from the committed offset, each further one from the end of the run before it. The metadata has a limit
(``offset.metadata.max.bytes`` of the broker): the highest runs are dropped first, which costs nothing but a second handling of
what they held. Metadata that is not ours, or damaged, says nothing: all above the offset is then read again.
"""

import base64
import binascii
from collections.abc import Sequence

PREFIX = "tidelog:1:"
# Offsets have 63 bits.
_VARINT_BYTES_MAX = 9
_OFFSET_MAX = (1 << 63) - 1

Run = tuple[int, int]
"""First offset, and the offset after the last one."""


def encode(committed: int, runs: Sequence[Run], bytes_max: int) -> str:
    """``runs`` ascend, are above ``committed`` and do not touch. Empty when there is nothing to say or no room to say it."""
    room = (bytes_max - len(PREFIX)) // 4 * 3
    content = bytearray()
    end = committed
    for start, next_end in runs:
        run = _varint(start - end) + _varint(next_end - start)
        if len(content) + len(run) > room:
            break
        content += run
        end = next_end
    return PREFIX + base64.b64encode(content).decode("ascii") if content else ""


def decode(committed: int, metadata: str | None) -> list[Run]:
    """The runs that ``encode`` wrote; none when it did not."""
    if not metadata or not metadata.startswith(PREFIX):
        return []
    try:
        content = base64.b64decode(metadata[len(PREFIX) :].encode("ascii"), validate=True)
        numbers = _varints(content)
    except (binascii.Error, ValueError):
        return []
    if len(numbers) % 2:
        return []
    runs: list[Run] = []
    end = committed
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        start, end = end + gap, end + gap + length
        if not gap or not length or end > _OFFSET_MAX:
            return []
        runs.append((start, end))
    return runs


def _varint(number: int) -> bytes:
    """Seven bits a byte, lowest first."""
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)


def _varints(content: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
        elif shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError("a varint is too long")
    if shift:
        raise ValueError("the last varint is cut")
    return numbers
