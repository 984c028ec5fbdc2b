"""The page /metrics: a moment of all numbers, taken on the loop in slices and rendered beside it.

One page is made at a time, whoever asks meanwhile gets the same, and for ``FRESH_SECONDS`` so does everybody: a page costs some
milliseconds of the processor, and asking for it again and again must not cost them each time.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus

from tidelog.metrics.exposition import CONTENT_TYPE, render
from tidelog.metrics.registry import Family, Registry
from tidelog.ports.executor import Completion, Executor
from tidelog.server.http import Answer, HttpResponse

FRESH_SECONDS = 1.0
# Between two slices, for everybody else.
PAUSE_SECONDS = 0.001
# Long enough that the loop's thread, which may be waiting for the interpreter, gets it.
RENDER_PAUSE_SECONDS = 0.0002

_log = logging.getLogger(__name__)


class MetricsPage:
    """``on_loop`` is asked on the loop; ``off_loop``, whose sources read files, in the executor's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_loop: Registry, off_loop: Registry, executor: Executor) -> None:
        self._loop = loop
        self._on_loop = on_loop
        self._off_loop = off_loop
        self._executor = executor
        self._waiting: list[Answer] = []
        self._slices: Iterator[list[Family] | None] = iter(())
        self._page: HttpResponse | None = None
        self._made_at = 0.0
        self.made = 0

    def serve(self, answer: Answer) -> None:
        if self._page is not None and self._loop.time() - self._made_at < FRESH_SECONDS:
            answer(self._page)
            return
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            self._slices = self._on_loop.snapshot()
            self._take_slice()

    def _take_slice(self) -> None:
        try:
            families = next(self._slices)
        except Exception as error:
            self._fail(error)
            return
        if families is None:
            self._loop.call_later(PAUSE_SECONDS, self._take_slice)
        else:
            self._executor.submit(partial(_render, families, self._off_loop), self._rendered)

    def _rendered(self, completion: Completion) -> None:
        if completion.error is not None:
            self._fail(completion.error)
            return
        self._page = HttpResponse(HTTPStatus.OK, completion.result, CONTENT_TYPE)
        self._made_at = self._loop.time()
        self.made += 1
        self._answer_all(self._page)

    def _fail(self, error: BaseException) -> None:
        _log.error("the metrics cannot be shown: %r", error)
        self._answer_all(HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"the metrics cannot be shown; the log says why\n"))

    def _answer_all(self, response: HttpResponse) -> None:
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(response)


def _render(families: list[Family], off_loop: Registry) -> bytes:
    """In a helper thread."""
    pause = partial(time.sleep, RENDER_PAUSE_SECONDS)
    for found in off_loop.snapshot():
        if found is not None:
            families = families + found
    return render(families, pause)
