"""``make soak``: seeds that nobody has tried, of every simulated cluster, until the time is over."""

import os
import time

import pytest

from simulation.run import describe, run_seed


@pytest.mark.soak
@pytest.mark.parametrize("world", ["quorum", "cluster", "replicas"])
def test_new_seeds(world: str) -> None:
    end = time.monotonic() + 60 * float(os.environ.get("TIDELOG_SOAK_MINUTES", "1"))
    seed = int.from_bytes(os.urandom(4), "big")
    while time.monotonic() < end:
        result = run_seed(seed, world)
        assert not result.violations, describe(result)
        seed += 1
