"""The HTTP endpoint of a worker: ``/metrics`` for Prometheus and ``/health`` for a supervisor.

It is a thread of its own, so that it answers while handlers are at work and while the broker is away. ``/health`` is 200 while
the worker is alive (it polls, and no handler runs for longer than ``liveness_timeout``) and 503 otherwise: that is when a restart
helps. Its body also tells whether the group has assigned partitions.
"""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tidelog.client.errors import InvalidArgument
from tidelog.metrics.exposition import CONTENT_TYPE

# A caller that sends nothing, or takes nothing, does not hold its thread for longer.
REQUEST_SECONDS_MAX = 10.0

Page = Callable[[], tuple[HTTPStatus, str, bytes]]


def health_page(is_alive: bool, is_joined: bool) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.OK if is_alive else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "application/json", json.dumps({"alive": is_alive, "joined": is_joined}).encode() + b"\n"


def metrics_page(text: bytes) -> tuple[HTTPStatus, str, bytes]:
    return HTTPStatus.OK, CONTENT_TYPE, text


class WorkerEndpoint:
    """Serves pages by their path until it is closed. ``port`` 0 takes a free one."""

    def __init__(self, host: str, port: int, pages: dict[str, Page]) -> None:
        """InvalidArgument if the address is taken or is not one of this machine."""

        class Request(BaseHTTPRequestHandler):
            timeout = REQUEST_SECONDS_MAX

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                if page is None:
                    self.send_error(HTTPStatus.NOT_FOUND, f"there is {', '.join(pages)}")
                    return
                status, kind, body = page()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name that http.server has
                """Log nothing: a scrape every few seconds would drown what matters."""

        try:
            self._server = ThreadingHTTPServer((host, port), Request)
        except OSError as error:
            raise InvalidArgument(f"metrics_port={port}: {host}:{port} cannot be opened: {error.strerror or error}") from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="tidelog-worker-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
