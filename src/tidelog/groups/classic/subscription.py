"""The topics in a member's metadata, which consumers write in a format of their own:

    version int16 | topics: int32 count, each an int16 length and that many bytes | what later versions add

Other protocol types (Connect, Streams) write what they like, and so may anybody: what cannot be read is not known.
"""

import struct

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """None when the bytes are not a subscription."""
    try:
        _, count = _HEAD.unpack_from(metadata)
        position = _HEAD.size
        # Each topic takes two bytes at least.
        if not 0 <= count <= len(metadata) // _LENGTH.size:
            return None
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
