"""Checks that every hand-written decoder must pass, whatever it decodes."""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tidelog.wire.errors import MalformedRequest

Decode = Callable[[memoryview], object]


def check_truncations(decode: Decode, body: bytes) -> None:
    """Every shorter prefix, and one byte more, is refused."""
    for length in range(len(body)):
        with pytest.raises(MalformedRequest):
            decode(memoryview(body[:length]))
    with pytest.raises(MalformedRequest):
        decode(memoryview(body + b"\0"))


def check_mutations(decode: Decode, body: bytes, seed: int, rounds: int = 50) -> None:
    """Bytes changed, cut and doubled: the decoder returns something or raises MalformedRequest, nothing else."""
    randomness = random.Random(seed)
    for _ in range(rounds):
        mutant = bytearray(body)
        for _ in range(randomness.randint(1, 4)):
            position = randomness.randrange(len(mutant) + 1)
            kind = randomness.randrange(4)
            if kind == 0 and position < len(mutant):
                mutant[position] = randomness.choice((0, 1, 0x7F, 0x80, 0xFF, randomness.randrange(256)))
            elif kind == 1:
                mutant[position:position] = randomness.randbytes(randomness.randint(1, 5))
            elif kind == 2:
                del mutant[position : position + randomness.randint(1, 5)]
            else:
                mutant[position : position + 4] = b"\x7f\xff\xff\xff"
        with suppress(MalformedRequest):
            decode(memoryview(mutant))
