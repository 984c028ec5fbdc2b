"""The pages ``/queues/QUEUE?group=GROUP``: what a share group has left to do, as JSON that an autoscaler reads as it is.

Any broker answers for the whole queue: it asks the share coordinators and the leaders of all partitions
(``broker/share_figures``). If one of them does not answer, neither does the page: a backlog without one partition would let an
autoscaler stop workers that have work. A page is reused for a second, because each costs requests to other brokers.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

from tidelog.broker.broker import BrokerNode
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.share_figures import NOTHING_DUE, ShareFigures, SharePlace, ask_share_figures
from tidelog.server.http import Answer, HttpRequest, HttpResponse
from tidelog.wire.own_fields import UNKNOWN

PREFIX = "/queues/"
JSON = "application/json"
FRESH_MS = 1_000
# Autoscalers ask for a few queues each.
PAGES_MAX = 64

QueueAndGroup = tuple[str, str]


class QueuePages:
    def __init__(self, broker: BrokerNode, wake: Callable[[], None]) -> None:
        """``wake`` is called when the broker was given something to do."""
        self._broker = broker
        self._wake = wake
        # The latest answers, and when they were made.
        self._pages: dict[QueueAndGroup, tuple[int, HttpResponse]] = {}

    def serve(self, request: HttpRequest, answer: Answer) -> None:
        queue = unquote(request.path.removeprefix(PREFIX))
        options = parse_qs(request.query, keep_blank_values=True)
        groups = options.pop("group", [queue])
        if options or len(groups) != 1 or not groups[0]:
            answer(_error(HTTPStatus.BAD_REQUEST, f"expected {PREFIX}QUEUE or {PREFIX}QUEUE?group=GROUP"))
            return
        which = queue, groups[0]
        made_ms, page = self._pages.get(which, (0, None))
        if page is not None and self._broker.clock.monotonic_ms() - made_ms < FRESH_MS:
            answer(page)
            return
        topic = self._broker.image.topic(queue)
        if topic is None:
            answer(_error(HTTPStatus.NOT_FOUND, f"there is no queue {queue}: no topic has this name"))
            return
        places = [SharePlace(queue, topic.topic_id, index) for index in sorted(topic.partitions)]
        ask_share_figures(self._broker, which[1], places, partial(self._found, which, places, answer))
        self._wake()

    def _found(
        self, which: QueueAndGroup, places: Sequence[SharePlace], answer: Answer, found: Sequence[ShareFigures | Exception]
    ) -> None:
        for place, each in zip(places, found, strict=True):
            error = each if isinstance(each, Exception) else each.leader_error
            if error is not None:
                _, message = error_code_of(error)
                text = f"partition {place.partition} of {place.topic} cannot be asked: {message}"
                answer(_error(HTTPStatus.SERVICE_UNAVAILABLE, text))
                return
        figures = [each for each in found if isinstance(each, ShareFigures)]
        page = _page(HTTPStatus.OK, _document(which, figures, self._broker.clock.now_ms()))
        self._pages.pop(which, None)
        while len(self._pages) >= PAGES_MAX:
            del self._pages[next(iter(self._pages))]
        self._pages[which] = self._broker.clock.monotonic_ms(), page
        answer(page)


def _document(which: QueueAndGroup, figures: Sequence[ShareFigures], now_ms: int) -> dict[str, object]:
    queue, group = which
    written_ms = [each.leader.oldest_timestamp_ms for each in figures if each.leader.oldest_timestamp_ms != NOTHING_DUE]
    known_ms = [each for each in written_ms if each != UNKNOWN]
    oldest_seconds = max(0, now_ms - min(known_ms)) / 1000 if known_ms else None if written_ms else 0.0
    return {
        "queue": queue,
        "group": group,
        "backlog": sum(each.unsettled or 0 for each in figures),
        "oldest_seconds": oldest_seconds,
        "acquired": _sum([each.leader.acquired_count for each in figures]),
        "delayed": _sum([each.leader.delayed_count for each in figures]),
        "redelivered": _sum([each.redelivered for each in figures]),
        "partitions": len(figures),
    }


def _sum(counts: Sequence[int]) -> int | None:
    """Of what is known; None if nothing is."""
    known = [count for count in counts if count != UNKNOWN]
    return sum(known) if known else None


def _error(status: HTTPStatus, text: str) -> HttpResponse:
    return _page(status, {"error": text})


def _page(status: HTTPStatus, document: dict[str, object]) -> HttpResponse:
    return HttpResponse(status, json.dumps(document).encode() + b"\n", JSON)
