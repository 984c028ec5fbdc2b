"""Listeners: ``name://host:port``, as Kafka writes them.

A listener's name says who connects to it. Clients use any listener that is neither the one between brokers
(``inter.broker.listener.name``) nor one of the controllers (``controller.listener.names``), and each of the three kinds serves
its own APIs. Addresses are advertised by name too: who asks on one listener is told the brokers' addresses on the listener of
that name.

So far no listener is encrypted. A protocol other than PLAINTEXT is refused by name rather than ignored, so that nobody believes
that a connection is protected when it is not. An IPv6 address is written in brackets. An empty host means every address of the
machine, as in Kafka.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from ipaddress import ip_address

from tidelog.config.types import InvalidSetting

PLAINTEXT = "PLAINTEXT"
KNOWN_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ANY_HOST = "0.0.0.0"  # noqa: S104 - named here so that it can be recognised, and it is refused unless asked for twice
PORT_MAX = 65_535
EXPECTED = "expected host:port or PLAINTEXT://host:port"
# The names that mean a protocol without an entry in ``listener.security.protocol.map``.
DEFAULT_PROTOCOLS: Mapping[str, str] = {protocol: protocol for protocol in KNOWN_PROTOCOLS}


class ListenerRole(IntEnum):
    CLIENT = 0
    INTER_BROKER = 1
    CONTROLLER = 2


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


@dataclass(frozen=True, slots=True)
class NamedListener:
    name: str
    role: ListenerRole
    address: ListenerAddress
    """Where to listen."""
    advertised: ListenerAddress
    """Where others are told to connect to."""

    def bound_to(self, bound: ListenerAddress) -> "NamedListener":
        """The listener once its address is bound: port 0 becomes the port that was found."""
        advertised = replace(self.advertised, port=self.advertised.port or bound.port)
        return replace(self, address=bound, advertised=advertised)


def read_protocols(name: str, items: Sequence[str]) -> dict[str, str]:
    """Read ``NAME:PROTOCOL`` pairs, in addition to the names that are protocols themselves."""
    protocols = dict(DEFAULT_PROTOCOLS)
    for item in items:
        listener, separator, protocol = item.upper().partition(":")
        if not separator or protocol not in KNOWN_PROTOCOLS or not listener:
            raise InvalidSetting(name, item, f"expected NAME:PROTOCOL with one of {', '.join(KNOWN_PROTOCOLS)}")
        protocols[listener] = protocol
    return protocols


def read_listener(
    name: str, text: str, protocols: Mapping[str, str] = DEFAULT_PROTOCOLS, hint: str = EXPECTED
) -> tuple[str, ListenerAddress]:
    """Read one listener of the setting ``name``: its own name, and its address. Raises InvalidSetting with the reason."""
    listener, separator, address = text.strip().rpartition("://")
    protocol = protocols.get(listener.upper()) if separator else PLAINTEXT
    if protocol != PLAINTEXT:
        not_served = "is not served yet, only PLAINTEXT is"
        if protocol is None:
            reason = f"{listener} is not a protocol; {hint}"
        elif protocol == listener.upper():
            reason = f"{listener} {not_served}"
        else:
            reason = f"{listener} has the protocol {protocol}, which {not_served}"
        raise InvalidSetting(name, text, reason)
    host, separator, port_text = address.rpartition(":")
    if not separator:
        raise InvalidSetting(name, text, f"the port is missing; {EXPECTED}")
    if not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) <= PORT_MAX):
        raise InvalidSetting(name, text, f"expected a port from 0 to {PORT_MAX}")
    return listener.upper() or PLAINTEXT, ListenerAddress(_read_host(name, text, host), int(port_text))


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
