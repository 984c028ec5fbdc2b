"""What of a partition lies in the broker's files: looked at from outside, to see what a client really sent."""

import struct
from pathlib import Path

from tests.compatibility.clients.client import Codec

_BASE_OFFSET_AND_LENGTH = struct.Struct(">qi")
_ATTRIBUTES_POSITION = 21
_ATTRIBUTES = struct.Struct(">H")
_CODEC_MASK = 0x07


def codecs_of(data_path: str, topic: str, partition: int = 0) -> list[Codec]:
    """The codec of each batch, in the order of offsets."""
    codecs = []
    for path in sorted((Path(data_path) / f"{topic}-{partition}").glob("*.log")):
        content = path.read_bytes()
        position = 0
        while position < len(content):
            _, length = _BASE_OFFSET_AND_LENGTH.unpack_from(content, position)
            (attributes,) = _ATTRIBUTES.unpack_from(content, position + _ATTRIBUTES_POSITION)
            codecs.append(list(Codec)[attributes & _CODEC_MASK])
            position += _BASE_OFFSET_AND_LENGTH.size + length
    return codecs


def segment_count(data_path: str, topic: str, partition: int = 0) -> int:
    return len(list((Path(data_path) / f"{topic}-{partition}").glob("*.log")))
