import asyncio
import time

from tests.server.harness import wait_until
from tidelog.server.loop_lag import BUCKETS_MS, LoopLag


def test_a_loop_that_is_held_is_late() -> None:
    async def run() -> LoopLag:
        lag = LoopLag(asyncio.get_running_loop())
        lag.start()
        # Past the moment at which it was due.
        until = time.monotonic() + 0.25
        wait_until(lambda: time.monotonic() > until)
        while not sum(lag.counts):
            await asyncio.sleep(0.005)
        lag.stop()
        lag.stop()
        return lag

    lag = asyncio.run(run())
    assert lag.max_ms >= 140
    assert lag.max_ms >= lag.last_ms
    late = [bucket for bucket, count in zip((*BUCKETS_MS, 10_000), lag.counts, strict=True) if count]
    assert late[-1] >= 256


def test_an_idle_loop_is_not() -> None:
    async def run() -> LoopLag:
        lag = LoopLag(asyncio.get_running_loop())
        lag.start()
        while sum(lag.counts) < 3:
            await asyncio.sleep(0.005)
        lag.stop()
        return lag

    assert asyncio.run(run()).counts[-1] == 0
