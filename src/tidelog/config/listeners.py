"""Listeners: ``protocol://host:port``, as Kafka writes them.

So far there is one listener, without encryption. Anything else is refused by name rather than ignored, so that nobody believes
that a connection is protected when it is not. An IPv6 address is written in brackets. An empty host means every address of the
machine, as in Kafka.
"""

from dataclasses import dataclass
from ipaddress import ip_address

from tidelog.config.types import InvalidSetting

PLAINTEXT = "PLAINTEXT"
KNOWN_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ANY_HOST = "0.0.0.0"  # noqa: S104 - named here so that it can be recognised, and it is refused unless asked for twice
PORT_MAX = 65_535
EXPECTED = "expected host:port or PLAINTEXT://host:port"


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the host is a loopback address, by its text alone. A name is not looked up, since it may mean something else
        tomorrow."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_every_address(self) -> bool:
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False


def read_listener(name: str, text: str) -> ListenerAddress:
    """Read one listener of the setting ``name``. Raises InvalidSetting with the reason."""
    protocol, separator, address = text.strip().rpartition("://")
    if separator and protocol.upper() != PLAINTEXT:
        known = protocol.upper() in KNOWN_PROTOCOLS
        reason = "is not served yet, only PLAINTEXT is" if known else f"is not a protocol; {EXPECTED}"
        raise InvalidSetting(name, text, f"{protocol} {reason}")
    host, separator, port_text = address.rpartition(":")
    if not separator:
        raise InvalidSetting(name, text, f"the port is missing; {EXPECTED}")
    if not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) <= PORT_MAX):
        raise InvalidSetting(name, text, f"expected a port from 0 to {PORT_MAX}")
    return ListenerAddress(_read_host(name, text, host), int(port_text))


def _read_host(name: str, text: str, host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            is_version_6 = ip_address(host[1:-1]).version == 6
        except ValueError:
            is_version_6 = False
        if not is_version_6:
            raise InvalidSetting(name, text, "expected an IPv6 address within the brackets")
        return host[1:-1]
    if ":" in host:
        raise InvalidSetting(name, text, "write an IPv6 address in brackets: [::1]:9092")
    if any(character.isspace() or character in "/@[]" for character in host):
        raise InvalidSetting(name, text, EXPECTED)
    return host or ANY_HOST
