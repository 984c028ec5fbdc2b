"""Which waiting messages a handler gets next: lanes in turn, everything in order of arrival, or shares by weight. Pure.

``LaneDispatch`` keeps each lane's messages in order, ``UnorderedDispatch`` keeps none. ``WeightedDispatch`` has one of these for
each share of a worker's ``weights`` and divides the bundles among the shares that have something to begin, so that a flood in one
of them delays the others by no more than their weights say.

The division is start-time fair queueing. Each share has a position in virtual time, which moves by 1/weight for each message that
it hands out, and the share that is furthest behind is next. A share that had nothing to begin comes back at the current virtual
time: it is served next, but it has not saved up what it did not use.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.worker.partitions import AssignedPartition, WorkItem


class Lane:
    """The waiting items of a lane in order; at most one bundle of it is under way (``is_busy``)."""

    __slots__ = ("is_busy", "items", "key", "share")

    def __init__(self, key: object = None, share: int = 0) -> None:
        self.key = key
        """None if nobody looks up the lane by a key."""
        self.share = share
        """The share of its partition, for ``WeightedDispatch``."""
        self.items: deque[WorkItem] = deque()
        self.is_busy = False


class LaneDispatch:
    """Dispatches for ``order="key"`` and ``order="partition"``: each lane's messages one after the other, lanes in parallel.

    Keeps the lanes that have something to do and are not busy, in turn. ``take`` hands out a bundle: the waiting messages of one
    or more lanes. Messages that were not begun go back to the front of their lane. Pure, and not locked.
    """

    __slots__ = ("_lanes", "_ready", "queued")

    def __init__(self) -> None:
        self._lanes: dict[object, Lane] = {}
        self._ready: deque[Lane] = deque()
        self.queued = 0

    @property
    def ready(self) -> int:
        """The number of lanes that could be begun."""
        return len(self._ready)

    def lane_of(self, key: object, share: int = 0) -> Lane:
        """Return the lane of that key, and create it if it does not exist. A key is always in the same share."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, share)
        return lane

    def add(self, items: Sequence[WorkItem]) -> None:
        """Add items, in the order in which each lane is to see them."""
        ready = self._ready
        for item in items:
            lane = item.lane
            queue = lane.items
            if not queue and not lane.is_busy:
                ready.append(lane)
            queue.append(item)
        self.queued += len(items)

    def take(self, items_max: int) -> list[WorkItem]:
        """Take up to ``items_max`` items; empty if nothing may be begun now."""
        items: list[WorkItem] = []
        ready = self._ready
        while ready and len(items) < items_max:
            lane = ready.popleft()
            queue = lane.items
            if not queue:
                continue
            lane.is_busy = True
            room = items_max - len(items)
            if len(queue) <= room:
                items.extend(queue)
                queue.clear()
            else:
                items.extend([queue.popleft() for _ in range(room)])
        self.queued -= len(items)
        return items

    def give_back(self, unrun: Sequence[WorkItem]) -> None:
        """Return the part of a bundle that was not begun, in order: it waits again, before what waits already."""
        for item in reversed(unrun):
            item.lane.items.appendleft(item)
        self.queued += len(unrun)

    def release(self, lanes: Iterable[Lane]) -> None:
        """Called when nothing of the lanes is under way any more."""
        for lane in lanes:
            self._release(lane)

    def drain(self, lane: Lane) -> list[WorkItem]:
        """Remove and return what waits in a lane that is held; the lane is free afterwards."""
        items = list(lane.items)
        lane.items.clear()
        self.queued -= len(items)
        self._release(lane)
        return items

    def put_back(self, item: WorkItem, is_held: bool) -> None:
        """Let an item that was under way wait again, first in its lane, which is free afterwards if it was held."""
        lane = item.lane
        is_waiting_already = bool(lane.items)
        lane.items.appendleft(item)
        self.queued += 1
        if is_held:
            self._release(lane)
        elif not lane.is_busy and not is_waiting_already:
            self._ready.append(lane)

    def discard(self, is_gone: Callable[[AssignedPartition], bool]) -> int:
        """Drop the waiting messages of partitions that were taken away; returns how many there were."""
        before = self.queued
        seen: dict[int, Lane] = {id(lane): lane for lane in (*self._lanes.values(), *self._ready)}
        for lane in seen.values():
            kept = [item for item in lane.items if not is_gone(item.assigned)]
            if len(kept) < len(lane.items):
                self.queued -= len(lane.items) - len(kept)
                lane.items.clear()
                lane.items.extend(kept)
                if not kept and not lane.is_busy and lane.key is not None:
                    self._lanes.pop(lane.key, None)
        self._ready = deque(lane for lane in self._ready if lane.items)
        return before - self.queued

    def _release(self, lane: Lane) -> None:
        lane.is_busy = False
        if lane.items:
            self._ready.append(lane)
        elif lane.key is not None and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]


class UnorderedDispatch:
    """Dispatches for ``order="none"``: first come, first served, and nothing waits for anything. It has the same calls as
    ``LaneDispatch``; all items share one lane that nobody looks at. Pure, and not locked."""

    __slots__ = ("_items", "_lane")

    def __init__(self, share: int = 0) -> None:
        self._items: deque[WorkItem] = deque()
        self._lane = Lane(None, share)

    @property
    def queued(self) -> int:
        return len(self._items)

    @property
    def ready(self) -> int:
        return len(self._items)

    def lane_of(self, _: object, _share: int = 0) -> Lane:
        return self._lane

    def add(self, items: Sequence[WorkItem]) -> None:
        self._items.extend(items)

    def take(self, items_max: int) -> list[WorkItem]:
        queue = self._items
        if len(queue) <= items_max:
            items = list(queue)
            queue.clear()
            return items
        return [queue.popleft() for _ in range(items_max)]

    def give_back(self, unrun: Sequence[WorkItem]) -> None:
        self._items.extendleft(reversed(unrun))

    def release(self, _: Iterable[Lane]) -> None:
        """Lanes are never busy here."""

    def drain(self, _: Lane) -> list[WorkItem]:
        """No lane is ever held here."""
        return []

    def put_back(self, item: WorkItem, _is_held: bool) -> None:
        self._items.appendleft(item)

    def discard(self, is_gone: Callable[[AssignedPartition], bool]) -> int:
        before = len(self._items)
        self._items = deque(item for item in self._items if not is_gone(item.assigned))
        return before - len(self._items)


@dataclass(slots=True, eq=False)
class _Share:
    weight: float
    dispatch: LaneDispatch | UnorderedDispatch
    position: float = 0.0
    """Its virtual time: the messages that it has handed out, divided by its weight."""


class WeightedDispatch:
    """Divides a handler among shares by their weights. Which share an item belongs to is noted in its lane. It has the same calls
    as ``LaneDispatch``. Pure, and not locked."""

    __slots__ = ("_now", "_shares")

    def __init__(self, shares: Mapping[int, float], *, is_ordered: bool) -> None:
        """The weight by the number of the share."""
        self._shares = {
            number: _Share(weight, LaneDispatch() if is_ordered else UnorderedDispatch(number))
            for number, weight in shares.items()
        }
        self._now = 0.0

    @property
    def queued(self) -> int:
        return sum([share.dispatch.queued for share in self._shares.values()])

    @property
    def ready(self) -> int:
        return sum([share.dispatch.ready for share in self._shares.values()])

    def lane_of(self, key: object, share: int = 0) -> Lane:
        return self._shares[share].dispatch.lane_of(key, share)

    def add(self, items: Sequence[WorkItem]) -> None:
        for share, mine in self._by_share(items):
            self._come_back(share)
            share.dispatch.add(mine)

    def take(self, items_max: int) -> list[WorkItem]:
        """Take up to ``items_max`` items of one share."""
        while ready := [share for share in self._shares.values() if share.dispatch.ready]:
            share = min(ready, key=lambda each: (each.position, -each.weight))
            items = share.dispatch.take(items_max)
            if items:
                self._now = share.position
                share.position += len(items) / share.weight
                return items
        return []

    def give_back(self, unrun: Sequence[WorkItem]) -> None:
        for share, mine in self._by_share(unrun):
            share.position -= len(mine) / share.weight
            self._come_back(share)
            share.dispatch.give_back(mine)

    def release(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            share = self._shares[lane.share]
            self._come_back(share)
            share.dispatch.release((lane,))

    def drain(self, lane: Lane) -> list[WorkItem]:
        return self._shares[lane.share].dispatch.drain(lane)

    def put_back(self, item: WorkItem, is_held: bool) -> None:
        share = self._shares[item.lane.share]
        self._come_back(share)
        share.dispatch.put_back(item, is_held)

    def discard(self, is_gone: Callable[[AssignedPartition], bool]) -> int:
        return sum([share.dispatch.discard(is_gone) for share in self._shares.values()])

    def _by_share(self, items: Sequence[WorkItem]) -> Iterable[tuple[_Share, Sequence[WorkItem]]]:
        """The items of each share, in order. Nearly always they are all of one share."""
        by_number: dict[int, list[WorkItem]] = {}
        for item in items:
            by_number.setdefault(item.lane.share, []).append(item)
        return [(self._shares[number], mine) for number, mine in by_number.items()]

    def _come_back(self, share: _Share) -> None:
        """Called before something is added to a share: what it did not use while it had nothing to begin is gone."""
        if not share.dispatch.ready and share.position < self._now:
            share.position = self._now


Dispatch = LaneDispatch | UnorderedDispatch | WeightedDispatch
