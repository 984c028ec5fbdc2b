"""Every mutant can be planted: its text stands exactly once in its file. ``make mutants`` takes an hour; this takes no time."""

from tests.mutants.broker_table import BROKER_MUTANTS
from tests.mutants.coordination_table import GROUP_MUTANTS, TRANSACTION_MUTANTS
from tests.mutants.plant import ROOT, occurrences
from tests.mutants.table import MUTANTS


def test_every_mutant_finds_its_text_exactly_once() -> None:
    mutants = (*MUTANTS, *BROKER_MUTANTS, *GROUP_MUTANTS, *TRANSACTION_MUTANTS)
    lost = [
        f"{mutant.name}: {count} times in src/{mutant.file}" for mutant in mutants if (count := occurrences(mutant, ROOT)) != 1
    ]
    assert not lost, "\n" + "\n".join(lost)
