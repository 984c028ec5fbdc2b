"""The randomness port.

Jitter, back-off and generated identifiers all draw from one ``Randomness``, so that the seed alone determines a simulated run.
"""

import random
import secrets
from typing import Protocol


class Randomness(Protocol):
    def integer(self, low: int, high: int) -> int:
        """A uniform integer with ``low <= result <= high``."""
        ...

    def fraction(self) -> float:
        """A uniform float with ``0.0 <= result < 1.0``."""
        ...

    def token(self, length: int) -> bytes:
        """Return ``length`` bytes for an identifier that must not collide."""
        ...


class RealRandomness:
    __slots__ = ("_random",)

    def __init__(self) -> None:
        self._random = random.Random(secrets.randbits(128))  # noqa: S311 -- jitter only; identifiers come from secrets

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def fraction(self) -> float:
        return self._random.random()

    def token(self, length: int) -> bytes:
        return secrets.token_bytes(length)
