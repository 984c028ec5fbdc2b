"""The W3C traceparent: what is valid, what a hop hands on, what is left alone."""

import asyncio
import threading

import pytest
from opentelemetry import trace

from tidelog.client.tracing import (
    TRACEPARENT,
    MessagingSpans,
    child_traceparent,
    current_traceparent,
    extract,
    inject,
    is_valid,
    new_traceparent,
    with_traceparent,
)

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (GIVEN, True),
        (GIVEN.replace("00-4", "cc-4") + "-more", True),
        (GIVEN + "-more", False),
        (GIVEN.replace("00-4", "ff-4"), False),
        (GIVEN.upper(), False),
        ("00-" + "0" * 32 + "-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01", False),
        (GIVEN + "\n", False),
        ("", False),
        ("nonsense", False),
    ],
)
def test_validity(text: str, valid: bool) -> None:
    assert is_valid(text) is valid


def test_a_child_is_in_the_same_trace_with_a_span_of_its_own() -> None:
    child = child_traceparent(GIVEN)
    assert is_valid(child)
    assert child.split("-")[1] == GIVEN.split("-")[1]
    assert child.split("-")[2] != GIVEN.split("-")[2]
    assert child.split("-")[3] == "01"
    assert len({child_traceparent(GIVEN) for _ in range(100)}) == 100


def test_new_traces_are_valid_and_different() -> None:
    made = {new_traceparent() for _ in range(100)}
    assert len(made) == 100
    assert all(map(is_valid, made))


def test_the_current_one_is_that_of_the_block() -> None:
    assert current_traceparent() is None
    with with_traceparent(GIVEN):
        assert current_traceparent() == GIVEN
        with with_traceparent("nonsense"):
            assert current_traceparent() is None
        assert current_traceparent() == GIVEN
    assert current_traceparent() is None


def test_threads_and_tasks_do_not_share_it() -> None:
    seen: list[str | None] = []

    async def task(text: str) -> None:
        with with_traceparent(text):
            await asyncio.sleep(0)
            seen.append(current_traceparent())

    async def both() -> None:
        await asyncio.gather(task(GIVEN), task(child_traceparent(GIVEN)))

    asyncio.run(both())
    assert len(set(seen)) == 2
    with with_traceparent(GIVEN):
        thread = threading.Thread(target=lambda: seen.append(current_traceparent()))
        thread.start()
        thread.join()
    assert seen[-1] is None


def test_headers_carry_it() -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1")]
    inject(headers, GIVEN)
    found = extract(headers)
    assert found is not None
    assert found.split("-")[1] == GIVEN.split("-")[1]
    assert extract(dict(headers)) == found
    inject(headers, new_traceparent())
    assert [name for name, _ in headers] == ["a", TRACEPARENT], "one that is there already counts"


@pytest.mark.parametrize("data", [None, b"", b"nonsense", b"\xff\xfe", GIVEN.encode() + b"x"])
def test_somebody_elses_mistake_is_no_trace(data: bytes | None) -> None:
    assert extract([(TRACEPARENT, data)]) is None
    assert extract(None) is None


def test_without_an_sdk_headers_are_what_they_would_be_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer", lambda _: trace.NoOpTracer())
    spans = MessagingSpans(trace)
    headers: list[tuple[str, bytes | None]] = []
    spans.sent("orders", headers)
    assert headers == []
    with with_traceparent(GIVEN):
        spans.sent("orders", headers)
    found = extract(headers)
    assert found is not None
    assert found.split("-")[:2] == GIVEN.split("-")[:2]
    assert found != GIVEN
    spans.sent("orders", headers)
    assert extract(headers) == found
