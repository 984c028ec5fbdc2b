"""Bootstrap servers: ``host:port``, several with commas between them."""

from tidelog.client.transactions.errors import InvalidAddress, SecurityRequired

DEFAULT_PORT = 9092
PORT_MAX = 65535

Address = tuple[str, int]


def parse_addresses(bootstrap_servers: str) -> list[Address]:
    """A name before ``://`` is that of the listener, as librdkafka takes it; one of a secure listener is refused."""
    found = [_parse_address(text.strip()) for text in bootstrap_servers.split(",") if text.strip()]
    if not found:
        raise InvalidAddress(f"{bootstrap_servers!r} names no broker: expected HOST:PORT")
    return found


def _parse_address(text: str) -> Address:
    protocol, _, rest = text.rpartition("://")
    check_protocol(protocol or "PLAINTEXT")
    host, separator, port = rest.rpartition(":")
    if not separator or rest.endswith("]"):
        host, port = rest, str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise InvalidAddress(f"{text}: {port} is no port")
    if not host.strip("[]"):
        raise InvalidAddress(f"{text}: expected HOST:PORT")
    return host.strip("[]"), int(port)


def check_protocol(name: str) -> None:
    if name.upper() != "PLAINTEXT":
        raise SecurityRequired(f"security.protocol {name}: the calls about transactions speak plaintext only")
