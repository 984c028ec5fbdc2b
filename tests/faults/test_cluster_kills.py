"""Random nodes of a cluster are killed while topics are created and deleted through any broker: nothing acknowledged is lost."""

import os

import pytest

from tests.faults.decisions import kill_rounds
from tidelog.testing import Cluster

ROUNDS = 12
SOAK_ROUNDS = 50


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(SOAK_ROUNDS, marks=pytest.mark.soak)])
def test_kills(rounds: int) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    with Cluster(3) as cluster:
        assert len(kill_rounds(cluster, seed, rounds)) == rounds
