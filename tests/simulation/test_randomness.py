"""Randomness from a seed."""

from simulation.randomness import SimulatedRandomness


def draws(randomness: SimulatedRandomness) -> list[object]:
    return [randomness.integer(0, 1 << 60), randomness.fraction(), randomness.token(8)]


def test_the_same_seed_gives_the_same_draws() -> None:
    assert draws(SimulatedRandomness(1)) == draws(SimulatedRandomness(1))
    assert draws(SimulatedRandomness(1)) != draws(SimulatedRandomness(2))


def test_a_fork_depends_on_seed_and_name_only() -> None:
    parent = SimulatedRandomness(1)
    before = draws(parent.fork("disk"))
    parent.integer(0, 9)
    assert draws(parent.fork("disk")) == before
    assert draws(parent.fork("network")) != before
    assert draws(SimulatedRandomness(2).fork("disk")) != before


def test_ranges_include_both_ends() -> None:
    randomness = SimulatedRandomness(1)
    assert {randomness.integer(3, 5) for _ in range(100)} == {3, 4, 5}
    assert all(0.0 <= randomness.fraction() < 1.0 for _ in range(100))
    assert len(randomness.token(5)) == 5
