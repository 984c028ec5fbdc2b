"""Which APIs Apache Kafka serves in which versions, and that we serve the same, or say on the page why not."""

import re
import socket
import struct
from pathlib import Path

import pytest

from tests.compatibility.apache_kafka import ApacheKafka, KafkaUnavailable, kafka_classpath
from tidelog.broker.handlers import TABLE
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "compatibility.md"

# What a broker of Apache Kafka 4.3 advertises to clients; `make compat` compares it with a real one.
KAFKA_VERSIONS = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5),
    14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4),
    24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4), 33: (0, 2),
    34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2), 40: (1, 2), 41: (1, 3), 42: (0, 2), 43: (0, 2),
    44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2),
    60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1),
    77: (1, 1), 78: (1, 2), 79: (1, 2), 80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1),
    88: (0, 0), 89: (0, 0), 90: (0, 1), 91: (0, 0), 92: (0, 0),
}  # fmt: skip

# The page says why.
DIFFERENT_VERSIONS = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0),
    ApiKey.PUSH_TELEMETRY: (0, 0),
}

API_VERSIONS_VERSION = 4
CALL_SECONDS_MAX = 20.0


def name_of(key: int) -> str:
    """As Kafka writes it: SaslHandshake."""
    return ApiKey(key).name.title().replace("_", "")


def not_served_on_the_page(page: str) -> set[str]:
    table = page.split("| not served | why |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([A-Z][^|]*) \|", table, re.MULTILINE)
    return {name for row in rows for name in row.split(", ")}


def test_what_is_served_is_served_in_kafkas_versions() -> None:
    expected = {key: DIFFERENT_VERSIONS.get(ApiKey(key), KAFKA_VERSIONS.get(key)) for key in TABLE}
    assert {key: api.versions for key, api in TABLE.items()} == expected


def test_the_page_names_what_is_not_served() -> None:
    assert not_served_on_the_page(PAGE.read_text()) == {name_of(key) for key in KAFKA_VERSIONS if key not in TABLE}


def test_the_names_on_a_page_are_read() -> None:
    page = "x\n| not served | why |\n|---|---|\n| One, Two | because |\n| Three | so |\n\n| Four | no |\n"
    assert not_served_on_the_page(page) == {"One", "Two", "Three"}


@pytest.mark.apache_kafka
def test_kafka_advertises_these_versions(tmp_path: Path) -> None:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    with ApacheKafka(tmp_path) as kafka:
        assert advertised_versions(kafka.port) == KAFKA_VERSIONS


def advertised_versions(port: int) -> dict[int, tuple[int, int]]:
    key, version = ApiKey.API_VERSIONS, API_VERSIONS_VERSION
    body = encode_request(key, version, {"client_software_name": "tidelog", "client_software_version": "1"})
    request = request_header(key, version, 1, "tidelog") + body
    with socket.create_connection(("127.0.0.1", port), timeout=CALL_SECONDS_MAX) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        response = memoryview(connection.recv(size, socket.MSG_WAITALL))
    _, position = parse_response_header(key, version, response)
    message = decode_response(key, version, response, position)
    return {api.api_key: (api.min_version, api.max_version) for api in message.api_keys}
