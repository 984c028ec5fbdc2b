"""Requests to other brokers, on the listener between brokers: one channel for each broker that is asked.

The image says where a broker is. A broker that is not registered, or has no such listener, cannot be asked, which is a failure
like any other: the caller tries again, and by then the image may know more.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.peer_channel import PeerChannel, PeerError, PeerOptions, PeerRequest
from tidelog.ports.network import Network
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

OnReply = Callable[[DecodedMessage], None]
OnFailure = Callable[[PeerError], None]

# A marker, or the answer to a verification, takes a sync of the other broker's disk.
REQUEST_MS_MAX = 10_000
REQUESTS_MAX = 1_000


class BrokerChannels:
    def __init__(self, node: "BrokerNode", network: Network) -> None:
        self._node = node
        self._network = network
        listener = node.config.values["inter.broker.listener.name"]
        self._listener = listener.upper() if listener is not None else None
        self._channels: dict[int, PeerChannel] = {}

    def request(
        self, broker_id: int, api: tuple[int, int], fields: Mapping[str, object], on_reply: OnReply, on_failure: OnFailure
    ) -> None:
        """``api`` is the key and the version. One of the two is called, later."""
        api_key, version = api
        broker = self._node.image.brokers.find(broker_id)
        endpoint = broker.endpoint(self._listener) if broker is not None and self._listener is not None else None
        if endpoint is None:
            error = PeerError(f"broker {broker_id} has no listener for other brokers that this one knows")
            self._node.timers.schedule(0, partial(on_failure, error))
            return

        def replied(_: int, body: memoryview) -> None:
            try:
                reply = decode_response(api_key, version, body)
            except MalformedRequest as malformed:
                on_failure(PeerError(f"broker {broker_id} answered nonsense: {malformed}", was_sent=True))
                return
            on_reply(reply)

        body = encode_request(api_key, version, fields)
        self._channel(broker_id, endpoint.host, endpoint.port).send(
            PeerRequest(api_key, (version, version), lambda _: body, replied, on_failure, REQUEST_MS_MAX)
        )

    def _channel(self, broker_id: int, host: str, port: int) -> PeerChannel:
        channel = self._channels.get(broker_id)
        if channel is None:
            options = PeerOptions(f"broker-{self._node.config.node_id}", requests_max=REQUESTS_MAX)
            channel = self._channels[broker_id] = PeerChannel(self._network, self._node.timers, host, port, options)
        channel.move_to(host, port)
        return channel

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
