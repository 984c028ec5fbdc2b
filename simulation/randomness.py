"""Randomness that a seed determines.

There is one generator per component (``fork``), so that a component which draws once more does not change the draws of all
others.
"""

import random


class SimulatedRandomness:
    __slots__ = ("_random", "fraction", "seed")

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        # A text seed goes through SHA-512 in the standard library, not through hash(), so PYTHONHASHSEED has no effect.
        self._random = random.Random(seed)
        # This is the bound method itself: a crash image draws once per page, and saving a call saves a third of the cost.
        self.fraction = self._random.random

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def token(self, length: int) -> bytes:
        return self._random.randbytes(length)

    def fork(self, name: str) -> "SimulatedRandomness":
        """Return another generator, the same for the same seed and name whatever was drawn from this one."""
        return SimulatedRandomness(f"{self.seed}/{name}")
