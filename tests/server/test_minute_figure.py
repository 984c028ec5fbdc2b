"""A minute of values, on a clock that the test moves."""

from tidelog.server.minute_figure import BUCKETS_MS, SLOT_COUNT, SLOT_SECONDS, MinuteFigure

START = 12_345.0


def test_values_fall_into_their_buckets() -> None:
    figure = MinuteFigure()
    for value_ms in (0.0, 1.0, 1.1, 10.0, 10.1, 1000.0, 1000.1, 60_000.0):
        figure.note(value_ms, START)
    counted = dict(zip((*BUCKETS_MS, None), figure.counts(START), strict=True))
    assert {bucket: count for bucket, count in counted.items() if count} == {1: 2, 2: 1, 10: 1, 20: 1, 1000: 1, None: 2}
    assert figure.max_ms(START) == 60_000.0
    assert figure.total == 8


def test_a_minute_later_it_is_forgotten() -> None:
    figure = MinuteFigure()
    figure.note(70.0, START)
    figure.note(30.0, START + 3 * SLOT_SECONDS)
    nearly = START + (SLOT_COUNT - 1) * SLOT_SECONDS
    assert (figure.max_ms(nearly), sum(figure.counts(nearly))) == (70.0, 2)
    minute = START + SLOT_COUNT * SLOT_SECONDS
    assert (figure.max_ms(minute), sum(figure.counts(minute))) == (30.0, 1)
    assert (figure.max_ms(START + 3600), sum(figure.counts(START + 3600))) == (0.0, 0)
    assert figure.total == 2


def test_a_clock_that_stands_or_goes_back_loses_nothing() -> None:
    figure = MinuteFigure()
    figure.note(5.0, START)
    figure.note(7.0, START - 2 * SLOT_SECONDS)
    assert (figure.max_ms(START), sum(figure.counts(START))) == (7.0, 2)
