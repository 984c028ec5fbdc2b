"""Requests and responses of every API, by kio's definitions: the codec of all that is not hot enough for one of its own.

Both ways speak one vocabulary (see ``schema``): Kafka's names in snake case, milliseconds and error codes as integers, ids as 16
bytes. A decoded message gives defaults for fields that its version lacks, an encoded one leaves out fields that its version
lacks, so a handler is written once for all versions.

Bytes after the end of a body are ignored, as in Kafka. Everything of kio is imported on first use.
"""

from tidelog.wire.errors import MalformedRequest
from tidelog.wire.message_reader import DecodedMessage, message_reader
from tidelog.wire.message_writer import Fields, message_writer
from tidelog.wire.primitives import Reader
from tidelog.wire.protocol import RequestHeader
from tidelog.wire.schema import Direction

__all__ = ["DecodedMessage", "Fields", "decode_request", "decode_response", "encode_request", "encode_response"]


def decode_request(header: RequestHeader, frame: memoryview) -> DecodedMessage:
    """The body that follows ``header`` in ``frame``; nothing in the result refers to the frame. Raises only MalformedRequest."""
    try:
        read = message_reader(header.api_key, header.api_version, Direction.REQUEST)
    except KeyError:
        raise MalformedRequest(f"api key {header.api_key} has no version {header.api_version}") from None
    return read(Reader(frame, header.body_position))


def encode_response(api_key: int, version: int, fields: Fields) -> bytes:
    """The body, without header."""
    return _encode(api_key, version, Direction.RESPONSE, fields)


# The client's side.


def encode_request(api_key: int, version: int, fields: Fields) -> bytes:
    """The body, without header."""
    return _encode(api_key, version, Direction.REQUEST, fields)


def decode_response(api_key: int, version: int, frame: memoryview, position: int = 0) -> DecodedMessage:
    """The body at ``position``. As many elements as the frame has room for: who asked for a large answer may have it."""
    return message_reader(api_key, version, Direction.RESPONSE)(Reader(frame, position, elements_max=len(frame)))


def _encode(api_key: int, version: int, direction: Direction, fields: Fields) -> bytes:
    out = bytearray()
    message_writer(api_key, version, direction)(out, fields)
    return bytes(out)
