from collections.abc import Callable

from tidelog.server.shared_memory import SharedMemory


class Holder:
    def __init__(self) -> None:
        self.resumed = 0

    def resume(self) -> None:
        self.resumed += 1


def run_now(callback: Callable[[], None]) -> None:
    callback()


def test_below_the_budget_everybody_may_grow() -> None:
    memory = SharedMemory(100, run_now)
    memory.change(99)
    assert memory.may_grow(Holder(), is_inside_frame=False)
    assert memory.waiting_count == 0


def test_who_waits_is_resumed_when_a_good_part_is_free_again() -> None:
    memory = SharedMemory(100, run_now)
    memory.change(100)
    holder = Holder()
    assert not memory.may_grow(holder, is_inside_frame=False)
    memory.change(-10)
    assert holder.resumed == 0
    memory.change(-15)
    assert holder.resumed == 1
    assert memory.waiting_count == 0


def test_one_in_the_middle_of_a_frame_is_let_through_at_a_time() -> None:
    memory = SharedMemory(100, run_now)
    memory.change(100)
    first, second, third = Holder(), Holder(), Holder()
    assert memory.may_grow(first, is_inside_frame=True)
    assert not memory.may_grow(second, is_inside_frame=True)
    assert not memory.may_grow(third, is_inside_frame=False)
    assert memory.may_grow(first, is_inside_frame=True)
    memory.frame_done(third)
    assert second.resumed == 0
    memory.frame_done(first)
    assert second.resumed == third.resumed == 1
    assert memory.may_grow(second, is_inside_frame=True)


def test_one_that_is_gone_is_not_resumed_and_lets_the_next_one_through() -> None:
    memory = SharedMemory(100, run_now)
    memory.change(100)
    first, second, third = Holder(), Holder(), Holder()
    assert memory.may_grow(first, is_inside_frame=True)
    assert not memory.may_grow(second, is_inside_frame=True)
    assert not memory.may_grow(third, is_inside_frame=True)
    memory.forget(second)
    memory.forget(first)
    assert (second.resumed, third.resumed) == (0, 1)


def test_tight_is_more_than_half() -> None:
    memory = SharedMemory(100, run_now)
    memory.change(50)
    assert not memory.is_tight
    memory.change(1)
    assert memory.is_tight
