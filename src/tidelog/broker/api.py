"""What an API of the protocol is to the broker: its key, its versions, its handler, and how it says that it failed.

A handler gets a ``RequestContext`` and the decoded request. It answers by ``context.reply`` now or later, exactly once. What it
raises becomes an error response at one place, in the session, through ``Api.failure``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.ports.disk import Buffer
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import RecordsPart
from tidelog.wire.kio_adapter import encode_response
from tidelog.wire.protocol import RequestHeader, response_header

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.session import ClientSession, ReplySlot

# A response is a list of these: bytes to send, and slices of segment files to send without reading them.
Part = Buffer | RecordsPart
Fields = Mapping[str, Any]


class RequestContext:
    __slots__ = ("_slot", "broker", "header", "session")

    def __init__(self, broker: "Broker", session: "ClientSession", header: RequestHeader, slot: "ReplySlot") -> None:
        self.broker = broker
        self.session = session
        self.header = header
        self._slot = slot

    def reply(self, fields: Fields) -> None:
        """Answer with the fields of a response, in snake case; those that the request's version lacks are left out."""
        header = self.header
        self.reply_parts([encode_response(header.api_key, header.api_version, fields)])

    def reply_parts(self, body: list[Part]) -> None:
        """Answer with a body that is encoded already."""
        header = self.header
        self._slot.fill([response_header(header.api_key, header.api_version, header.correlation_id), *body])

    def reply_nothing(self) -> None:
        """acks=0: the client expects no answer."""
        self._slot.fill([])


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    versions: tuple[int, int]
    handle: Callable[[RequestContext, Any], None]
    failure: Callable[[Any, ErrorCode, str], Fields] | None = None
    """The fields of a response that says that the whole request failed; None: just ``error_code`` and ``error_message``."""
    decode: Callable[[RequestHeader, memoryview], Any] | None = None
    """Our own codec; None: kio's."""
    advertised_versions: tuple[int, int] | None = None
    """Where what is advertised differs from what is served: older librdkafka wants to see Produce 0."""
