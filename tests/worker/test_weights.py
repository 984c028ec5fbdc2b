"""Weights: a handler is divided among topics and partitions as they say, a flood in one share does not delay the others, and what
a share does not use goes to the others."""

import secrets
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toolkit_broker import ToolkitBroker, create_topic
from tests.worker.fakes import work_item
from tests.worker.running import Place, running
from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.client.partitioners import SetAside
from tidelog.client.producer import Producer
from tidelog.worker.dispatch import WeightedDispatch
from tidelog.worker.options import Weights
from tidelog.worker.partitions import WorkItem

URGENT, ORDINARY, RARE = 0, 1, 2
CONCURRENCY = 2
# A bundle holds a millisecond of work. With a handler that takes as long, it is one message, so that a thread that has to wait
# for the processor holds up that one message and not hundreds.
HANDLER_SECONDS = 0.001


class Load:
    """Items of several shares, each with one lane per item, and what became of them."""

    def __init__(self, shares: dict[int, float], *, is_ordered: bool = True) -> None:
        self.dispatch = WeightedDispatch(shares, is_ordered=is_ordered)
        self._added = 0

    def add(self, share: int, count: int) -> None:
        numbers = range(self._added, self._added + count)
        self.dispatch.add([work_item(self.dispatch.lane_of(number, share), number) for number in numbers])
        self._added += count

    def take(self, items_max: int) -> list[WorkItem]:
        items = self.dispatch.take(items_max)
        assert len({item.lane.share for item in items}) <= 1, "a bundle is of one share"
        return items

    def run(self, messages: int, items_max: int) -> Counter[int]:
        """Handle about so many messages."""
        handled = Counter[int]()
        while handled.total() < messages and (items := self.take(items_max)):
            handled[items[0].lane.share] += len(items)
            self.dispatch.release([item.lane for item in items])
        return handled


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("items_max", [1, 7])
def test_busy_shares_get_what_their_weights_say(is_ordered: bool, items_max: int) -> None:
    load = Load({URGENT: 6, ORDINARY: 3, RARE: 1}, is_ordered=is_ordered)
    for share in (ORDINARY, URGENT, RARE):
        load.add(share, 400)
    handled = load.run(500, items_max)
    for share, wanted in {URGENT: 300, ORDINARY: 150, RARE: 50}.items():
        assert abs(handled[share] - wanted) <= 2 * items_max


def test_what_a_share_does_not_use_goes_to_the_others_and_is_not_saved_up() -> None:
    load = Load({URGENT: 9, ORDINARY: 1})
    load.add(ORDINARY, 1_000)
    assert load.run(500, 1) == {ORDINARY: 500}
    load.add(URGENT, 1)
    assert [item.lane.share for item in load.take(10)] == [URGENT], "it is next although the others wait"
    load.add(URGENT, 500)
    assert abs(load.run(100, 1)[ORDINARY] - 10) <= 1, "the ordinary ones do not stand back for what was not there"


def test_what_comes_back_is_not_charged() -> None:
    load = Load({URGENT: 1, ORDINARY: 1})
    load.add(URGENT, 600)
    load.add(ORDINARY, 600)
    handled = Counter[int]()
    for _ in range(200):
        items = load.take(50)
        # A slow handler begins one of its bundle, and the rest goes back.
        load.dispatch.give_back(items[1:])
        load.dispatch.release([item.lane for item in items])
        handled[items[0].lane.share] += 1
    assert abs(handled[URGENT] - handled[ORDINARY]) <= 2


@given(st.data())
def test_everything_is_handed_out_once_whatever_happens(data: st.DataObject) -> None:
    load = Load({URGENT: 5, ORDINARY: 1}, is_ordered=data.draw(st.booleans()))
    under_way: list[WorkItem] = []
    done: list[int] = []
    for _ in range(data.draw(st.integers(5, 30))):
        step = data.draw(st.sampled_from(["add", "take", "end", "give back", "put back"]))
        if step == "add":
            load.add(data.draw(st.sampled_from([URGENT, ORDINARY])), data.draw(st.integers(1, 4)))
        elif step == "take":
            under_way += load.take(data.draw(st.integers(1, 4)))
        elif under_way:
            item = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            if step == "put back":
                load.dispatch.put_back(item, is_held=True)
                continue
            if step == "give back":
                load.dispatch.give_back([item])
            else:
                done.append(item.offset)
            load.dispatch.release([item.lane])
        assert load.dispatch.queued == load._added - len(done) - len(under_way)
    done += [item.offset for item in under_way]
    load.dispatch.release([item.lane for item in under_way])
    while items := load.take(3):
        done += [item.offset for item in items]
        load.dispatch.release([item.lane for item in items])
    assert sorted(done) == list(range(load._added))


def test_a_partition_of_its_own_and_the_rest_of_its_topic() -> None:
    weights = Weights.checked({("orders", 0): 9, "orders": 2}, ["orders", "clicks"])
    shares = {name: weights.share_of(*name) for name in [("orders", 0), ("orders", 1), ("orders", 2), ("clicks", 0)]}
    assert [weights.by_share[share] for share in shares.values()] == [9, 2, 2, 1]
    assert len(set(shares.values())) == 3
    assert not Weights.checked(None, ["orders"])


@pytest.mark.parametrize("given_weights", [["orders"], {"payments": 2}, {("orders", -1): 2}, {"orders": 0}, {"orders": True}])
def test_weights_that_make_no_sense_are_refused(given_weights: Any) -> None:
    with pytest.raises(InvalidArgument, match="weights="):
        Weights.checked(given_weights, ["orders"])


# -- on a broker -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["key", "none"])
def test_under_load_the_weights_hold_and_an_urgent_message_passes_the_flood(kafka: ToolkitBroker, order: str) -> None:
    flood = Place(kafka.bootstrap, partitions=2)
    urgent = create_topic(kafka.bootstrap, f"urgent-{secrets.token_hex(4)}", partitions=1)
    begun: list[str] = []
    may_run = threading.Event()
    worker = flood.worker(
        topics=[flood.topic, urgent],
        weights={urgent: 9},
        order=order,
        concurrency=CONCURRENCY,
        retries=1,
        prefetch_messages=100_000,
    )

    @worker.handler
    def handle(message: Message) -> None:
        assert may_run.wait(120)
        begun.append(message.topic)
        time.sleep(HANDLER_SECONDS)

    flood.send(range(1_500), key=str)
    with Producer(kafka.bootstrap) as producer, running(worker) as run:
        run.until(lambda: worker.metrics().in_flight == 1_500, "the flood was read and waits")
        for number in range(200):
            producer.send(urgent, b"", key=str(number))
        producer.flush(60)
        run.until(lambda: worker.metrics().in_flight == 1_700, "the urgent ones wait behind it")
        may_run.set()
        run.until(lambda: len(begun) == 1_700, "all are handled")
    # The bundles that were handed out before the urgent ones came are of a few messages each.
    assert urgent in begun[:100]
    last = len(begun) - begun[::-1].index(urgent)
    assert last < 400, "200 urgent ones with nine tenths of the handler are through after about 222"
    ordinary = begun[:last].count(flood.topic)
    assert ordinary > 10, "and the flood goes on meanwhile"


def test_important_customers_have_a_partition_of_their_own(kafka: ToolkitBroker) -> None:
    place = Place(kafka.bootstrap, partitions=3)
    begun: list[tuple[int, bytes]] = []
    may_run = threading.Event()
    worker = place.worker(weights={(place.topic, 0): 9}, order="key", concurrency=CONCURRENCY, prefetch_messages=100_000)

    @worker.handler
    def handle(message: Message) -> None:
        assert may_run.wait(120)
        begun.append((message.partition, message.key or b""))
        time.sleep(HANDLER_SECONDS)

    important = SetAside(lambda _, key: key is not None and key.startswith(b"gold"))
    with Producer(kafka.bootstrap, partitioner=important) as producer, running(worker) as run:
        for number in range(1_000):
            producer.send(place.topic, b"", key=f"customer-{number}")
        producer.flush(60)
        run.until(lambda: worker.metrics().in_flight == 1_000, "the flood was read and waits")
        for number in range(100):
            producer.send(place.topic, b"", key=f"gold-{number}")
        producer.flush(60)
        run.until(lambda: worker.metrics().in_flight == 1_100, "the important ones wait behind it")
        may_run.set()
        run.until(lambda: len(begun) == 1_100, "all are handled")
    assert {key[:4] == b"gold" for partition, key in begun if partition == 0} == {True}
    assert {key[:4] == b"gold" for partition, key in begun if partition != 0} == {False}
    last = max(place for place, (partition, _) in enumerate(begun) if partition == 0)
    assert last < 300


def test_a_topic_that_is_too_small_to_set_partitions_aside() -> None:
    with pytest.raises(InvalidArgument, match="--partitions 3"):
        SetAside(lambda *_: True, partitions=2)("orders", b"a", 2)
    with pytest.raises(InvalidArgument, match="partitions="):
        SetAside(lambda *_: True, partitions=0)
