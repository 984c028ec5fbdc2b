"""Producers that stopped writing are forgotten, a few logs at a time."""

import pytest

from tests.log.harness import Store, batch
from tidelog.log.producers import producer_expiry
from tidelog.log.settings import DirectoryOptions, LogSettings

INTERVAL_MS = 10_000
OPTIONS = DirectoryOptions(producer_expiration_check_interval_ms=INTERVAL_MS)


@pytest.mark.parametrize("logs_per_tick", [1, 100])
def test_producers_expire_unless_their_transaction_is_open(monkeypatch: pytest.MonkeyPatch, logs_per_tick: int) -> None:
    monkeypatch.setattr(producer_expiry, "LOGS_PER_TICK", logs_per_tick)
    store = Store(LogSettings(producer_id_expiration_ms=5_000), options=OPTIONS)
    logs = [store.create(partition=partition) for partition in range(3)]
    for log in logs:
        log.append_as_leader(batch(producer_id=7, sequence=0), 0)
        log.append_as_leader(batch(producer_id=8, sequence=0, transactional=True), 0)
    store.commit(*logs)
    store.settle(INTERVAL_MS - 1000)
    assert [log.producers.entry(7) is None for log in logs] == [False] * 3, "not looked for yet"
    store.settle(3000)
    assert [log.producers.entry(7) is None for log in logs] == [True] * 3
    assert [log.producers.entry(8) is None for log in logs] == [False] * 3
