"""OpenTelemetry's metrics, as clients push them: what is read, what is skipped, and how far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.otlp_messages import attribute, double, gauge, integer, message, metrics_data, total, varint
from tidelog.wire import otlp
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.otlp import DataPoint, decode_metrics


def test_gauges_and_sums_with_their_attributes() -> None:
    attributes = (
        attribute("node_id", message(1, "7"))
        + attribute("on", varint(2 << 3) + varint(1))
        + attribute("n", varint(3 << 3) + varint((1 << 64) - 5))
        + attribute("x", double(4, 0.5))
    )
    data = metrics_data(gauge("latency", double(4, 1.5) + attributes, integer(6, -2)), total("count", integer(6, 9)))
    found, is_cut = decode_metrics(data, 10)
    shown = (("node_id", "7"), ("on", "true"), ("n", "-5"), ("x", "0.5"))
    assert found == [DataPoint("latency", shown, 1.5), DataPoint("latency", (), -2), DataPoint("count", (), 9)]
    assert not is_cut


def test_bytes_written_out_by_hand() -> None:
    # One metric "m", a gauge with one point: the integer -2, and the attribute "k" with the value "v".
    point = bytes.fromhex("31 feffffffffffffff 3a 08 0a 01 6b 12 03 0a 01 76")
    metric = bytes.fromhex("0a 01 6d 2a 15 0a 13") + point
    data = bytes.fromhex("0a 1e 12 1c 12 1a") + metric
    assert decode_metrics(data, 10).points == [DataPoint("m", (("k", "v"),), -2)]


def test_what_has_no_number_is_skipped() -> None:
    histogram = message(2, message(1, "h") + message(9, message(1, integer(4, 3))))
    data = metrics_data(histogram, gauge("empty", b""), gauge("kept", double(4, 2.0)))
    assert decode_metrics(data, 10).points == [DataPoint("kept", (), 2.0)]
    assert decode_metrics(b"", 10) == ([], False)


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [double(4, float(number)) for number in range(8)]
    found, is_cut = decode_metrics(metrics_data(gauge("m", *points)), 5)
    assert ([point.value for point in found], is_cut) == ([0, 1, 2, 3, 4], True)
    assert not decode_metrics(metrics_data(gauge("m", *points)), 8).is_cut
    monkeypatch.setattr(otlp, "FIELDS_MAX", 100)
    # A thousand empty fields that nobody knows, in two bytes each.
    assert decode_metrics((varint(9 << 3) + varint(0)) * 1000, 5) == ([], True)
    (long,) = decode_metrics(metrics_data(gauge("é" * 10_000, points[0])), 5).points
    assert long.metric == "é" * otlp.TEXT_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a", "within a number"),
        (b"\x0a\x05ab", "past its message's end"),
        (b"\x0b", "unknown type 3"),
        (b"\xff" * 11, "more than 64 bits"),
        (b"\x09\x00", "past its message's end"),
    ],
)
def test_what_is_not_a_message(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedRequest, match=reason):
        decode_metrics(data, 5)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_read_or_malformed(noise: bytes, position: int) -> None:
    data = metrics_data(gauge("m", double(4, 1.0) + attribute("k", message(1, "v"))))
    for each in (noise, data[:position] + noise, data[:position] + noise[:1] + data[position + 1 :]):
        try:
            decode_metrics(each, 5)
        except MalformedRequest:
            continue
