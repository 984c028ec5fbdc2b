"""The pages that tell how a broker is: /metrics, /health/live, /health/ready.

*live*: the loop answers. Nothing else is asked: a broker that is busy, or whose disk is full, is not helped by a restart.
*ready*: clients can be sent here (``broker/readiness.py``). Otherwise the status is 503 and the body says why.
"""

import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus

from tidelog.broker.broker import Broker
from tidelog.broker.metric_sources import add_broker_metrics
from tidelog.broker.readiness import unready_reason
from tidelog.metrics.registry import Registry
from tidelog.server.http import Answer, Handler, HttpListener, HttpResponse
from tidelog.server.metric_sources import add_process_metrics, add_server_metrics
from tidelog.server.metrics_page import MetricsPage
from tidelog.server.server import Server


def make_registries(server: Server, broker: Broker) -> tuple[Registry, Registry]:
    """For the loop, and for a helper thread."""
    on_loop, off_loop = Registry(), Registry()
    add_broker_metrics(on_loop, broker)
    add_server_metrics(on_loop, server)
    add_process_metrics(off_loop, broker.config.data_path)
    return on_loop, off_loop


def make_routes(server: Server, broker: Broker) -> Mapping[str, Handler]:
    page = MetricsPage(server.hub.loop, *make_registries(server, broker), server.hub.executor)

    def live(answer: Answer) -> None:
        answer(HttpResponse(HTTPStatus.OK, b"live\n"))

    def ready(answer: Answer) -> None:
        reason = "the broker stops" if server.is_stopping else unready_reason(broker)
        if reason is None:
            answer(HttpResponse(HTTPStatus.OK, b"ready\n"))
        else:
            answer(HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode()))

    return {"/metrics": page.serve, "/health/live": live, "/health/ready": ready}


class Observation:
    """The pages at their address. ``broker`` is asked for when the server has one."""

    def __init__(self, address: tuple[str, int], broker: Callable[[], Broker]) -> None:
        self.address = address
        self._broker = broker
        self._listener: HttpListener | None = None

    async def start(self, server: Server, bound: socket.socket) -> None:
        self.address = bound.getsockname()[:2]
        self._listener = HttpListener(server.hub.loop, make_routes(server, self._broker()))
        await self._listener.start(bound)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
