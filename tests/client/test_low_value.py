"""Which messages may be dropped when the buffer is full, and how they are counted."""

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.client.low_value import LowValueTopics


def test_only_marked_topics_are_dropped() -> None:
    topics = LowValueTopics({"clicks": "shed"})
    assert topics.drops("clicks")
    assert not topics.drops("orders")
    assert (topics.shed, topics.sampled) == (1, 0)


def test_a_fraction_is_kept_and_the_rest_counted() -> None:
    topics = LowValueTopics({"traces": 0.25})
    dropped = sum(topics.drops("traces") for _ in range(4000))
    assert 2800 < dropped < 3200
    assert (topics.shed, topics.sampled) == (0, dropped)


@pytest.mark.parametrize("rule", ["drop", 0, 1, 1.5, -0.1, True, None])
def test_other_rules_are_refused(rule: object) -> None:
    with pytest.raises(InvalidArgument, match=r'clicks is "shed", or the fraction'):
        LowValueTopics({"clicks": rule})  # type: ignore[dict-item]  # what a caller without types may do
