"""Encodes OpenTelemetry's MetricsData as clients do, for tests."""

import struct


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def message(number: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def integer(number: int, value: int) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<q", value)


def attribute(key: str, value: bytes) -> bytes:
    """``value`` is an encoded AnyValue."""
    return message(7, message(1, key) + message(2, value))


def gauge(name: str, *points: bytes) -> bytes:
    return message(2, message(1, name) + message(5, b"".join(message(1, point) for point in points)))


def total(name: str, *points: bytes) -> bytes:
    """A sum, with its temporality and that it is monotonic."""
    content = b"".join(message(1, point) for point in points) + varint(2 << 3) + varint(2) + varint(3 << 3) + varint(1)
    return message(2, message(1, name) + message(7, content))


def metrics_data(*metrics: bytes) -> bytes:
    resource = message(1, attribute("client_rack", message(1, "r1")))
    return message(1, resource + message(2, message(1, message(1, "scope")) + b"".join(metrics)))
