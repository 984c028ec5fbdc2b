"""Randomness that follows from a seed.

One generator per component (``fork``), so that a component which draws once more does not move the draws of all others.
"""

import random


class SimulatedRandomness:
    __slots__ = ("_random", "fraction", "seed")

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        # A text seed goes through SHA-512 in the standard library, not through hash(): PYTHONHASHSEED has no say.
        self._random = random.Random(seed)
        # The bound method itself: a crash image draws once per page, and one call less is a third of the cost.
        self.fraction = self._random.random

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def token(self, length: int) -> bytes:
        return self._random.randbytes(length)

    def fork(self, name: str) -> "SimulatedRandomness":
        """Another generator, the same for the same seed and name whatever was drawn from this one."""
        return SimulatedRandomness(f"{self.seed}/{name}")
