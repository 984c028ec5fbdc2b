"""The names of a directory made durable: one sync at a time, and nobody is told too early."""

import errno

from tests.log.harness import Store
from tidelog.log.directory_sync import DirectorySync


def make(store: Store) -> DirectorySync:
    return DirectorySync(store.disk, store.executor, "/data")


def test_requests_while_one_is_under_way_share_the_next() -> None:
    store = Store()
    sync = make(store)
    before = store.executor._submitted
    said: list[int] = []
    for number in range(100):
        sync.request(lambda error, number=number: said.append(number))  # type: ignore[misc]  # mypy does not see the default
    assert not sync.is_idle
    store.scheduler.run_until(lambda: len(said) == 1)
    assert said == [0], "the others asked after it had begun"
    store.scheduler.run_all()
    assert said == list(range(100))
    assert store.executor._submitted - before == 2
    assert sync.is_idle


def test_a_name_is_durable_when_the_request_is_answered() -> None:
    store = Store()
    sync = make(store)
    store.disk.open("/data/old", "create")
    assert store.wait(sync.request) is None
    store.disk.rename("/data/old", "/data/new")
    assert store.wait(sync.request) is None
    assert store.disk.crash_image(store.randomness, "none").exists("/data/new")


def test_an_error_reaches_all_who_waited_for_that_sync_and_no_other() -> None:
    store = Store()
    sync = make(store)
    said: list[BaseException | None] = []
    sync.request(said.append)
    sync.request(said.append)
    store.disk.faults.fail("sync", lambda path: path == "/data", errno.EIO, times=1)
    store.scheduler.run_all()
    assert [type(error) for error in said] == [OSError, type(None)]


def test_a_request_from_within_an_answer_gets_a_sync_of_its_own() -> None:
    store = Store()
    sync = make(store)
    said: list[str] = []

    def first(_: BaseException | None) -> None:
        said.append("first")
        sync.request(lambda _: said.append("second"))

    sync.request(first)
    store.scheduler.run_all()
    assert said == ["first", "second"]
    assert sync.is_idle
