import pytest

from tidelog.client.transactions.addresses import parse_addresses
from tidelog.client.transactions.errors import InvalidAddress, SecurityRequired


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:1234", [("localhost", 1234)]),
        ("localhost", [("localhost", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
        ("[::1]:1", [("::1", 1)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", ",", "a:", "a:b", "a:0", "a:65536", ":1", "a:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidAddress):
        parse_addresses(text)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "sasl_ssl"])
def test_a_secure_listener_is_refused(protocol: str) -> None:
    with pytest.raises(SecurityRequired, match=f"security.protocol {protocol}: .* plaintext only"):
        parse_addresses(f"{protocol}://a:1")
