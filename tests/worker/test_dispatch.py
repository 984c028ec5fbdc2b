"""Dispatch: each lane's jobs in order and one bundle at a time, all of them in the end; without order as they came."""

from hypothesis import given
from hypothesis import strategies as st

from tests.worker.fakes import assigned, job
from tidelog.worker.dispatch_lanes import LaneDispatch
from tidelog.worker.dispatch_none import UnorderedDispatch
from tidelog.worker.job import Job, Lane


@given(st.data())
def test_lanes_keep_their_order_and_have_one_bundle_at_a_time(data: st.DataObject) -> None:
    dispatch = LaneDispatch()
    partition = assigned()
    under_way: list[list[Job]] = []
    done: dict[object, list[int]] = {}
    number = 0
    for _ in range(data.draw(st.integers(5, 40))):
        step = data.draw(st.sampled_from(["add", "take", "end", "give back"]))
        if step == "add":
            jobs = []
            for key in data.draw(st.lists(st.integers(0, 4), max_size=6)):
                jobs.append(job(dispatch.lane_of(key), number, partition))
                number += 1
            dispatch.add(jobs)
        elif step == "take":
            bundle = dispatch.take(data.draw(st.integers(1, 5)))
            busy = {id(each.lane) for other in under_way for each in other}
            assert not busy & {id(each.lane) for each in bundle}, "a lane has one bundle at a time"
            if bundle:
                under_way.append(bundle)
        elif under_way:
            bundle = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            cut = data.draw(st.integers(0, len(bundle))) if step == "give back" else len(bundle)
            for each in bundle[:cut]:
                done.setdefault(each.lane.key, []).append(each.offset)
            dispatch.give_back(bundle[cut:])
            dispatch.release(dict.fromkeys(each.lane for each in bundle))
        assert dispatch.queued == number - sum(map(len, done.values())) - sum(map(len, under_way))
    for bundle in under_way:
        for each in bundle:
            done.setdefault(each.lane.key, []).append(each.offset)
        dispatch.release(dict.fromkeys(each.lane for each in bundle))
    while bundle := dispatch.take(3):
        for each in bundle:
            done.setdefault(each.lane.key, []).append(each.offset)
        dispatch.release(dict.fromkeys(each.lane for each in bundle))
    assert all(offsets == sorted(offsets) for offsets in done.values())
    assert sorted(offset for offsets in done.values() for offset in offsets) == list(range(number))
    assert not dispatch._lanes, "lanes that are over are not kept"


def test_a_held_lane_is_drained_and_free_again() -> None:
    dispatch = LaneDispatch()
    lane = dispatch.lane_of("k")
    dispatch.add([job(lane, 0), job(lane, 1), job(lane, 2)])
    assert [each.offset for each in dispatch.take(1)] == [0]
    assert dispatch.take(5) == []
    assert [each.offset for each in dispatch.drain(lane)] == [1, 2]
    assert dispatch.queued == 0
    dispatch.add([job(dispatch.lane_of("k"), 3)])
    assert [each.offset for each in dispatch.take(5)] == [3]


def test_what_is_put_back_comes_first_and_does_not_free_a_lane_that_others_use() -> None:
    dispatch = LaneDispatch()
    lane = Lane()
    dispatch.add([job(lane, 0), job(lane, 1), job(lane, 2)])
    (first,) = dispatch.take(1)
    dispatch.release([lane])
    (second,) = dispatch.take(1)
    dispatch.put_back(first, False)
    assert dispatch.take(5) == [], "the second is under way"
    dispatch.release([second.lane])
    assert [each.offset for each in dispatch.take(5)] == [0, 2]


def test_partitions_that_were_taken_away_are_forgotten() -> None:
    gone, stays = assigned(partition=1), assigned(partition=2)
    for dispatch in (LaneDispatch(), UnorderedDispatch()):
        dispatch.add(
            [job(dispatch.lane_of("a"), 0, gone), job(dispatch.lane_of("b"), 1, stays), job(dispatch.lane_of("b"), 2, gone)]
        )
        assert dispatch.discard(lambda each: each is gone) == 2
        assert [each.offset for each in dispatch.take(5)] == [1]


def test_without_order_all_come_as_they_came() -> None:
    dispatch = UnorderedDispatch()
    dispatch.add([job(dispatch.lane_of(None), number) for number in range(5)])
    assert [each.offset for each in dispatch.take(2)] == [0, 1]
    taken = dispatch.take(2)
    dispatch.give_back(taken)
    dispatch.put_back(job(dispatch.lane_of(None), 1), False)
    assert [each.offset for each in dispatch.take(9)] == [1, 2, 3, 4]
