"""Every mutant can be planted: its text stands exactly once in its file. ``make mutants`` takes an hour; this takes no time."""

from tests.mutants.bounds_table import BOUNDS_MUTANTS
from tests.mutants.broker_table import BROKER_MUTANTS
from tests.mutants.coordination_table import GROUP_MUTANTS, TRANSACTION_MUTANTS
from tests.mutants.moves_table import MOVES_MUTANTS
from tests.mutants.plant import ROOT, occurrences
from tests.mutants.queues_table import QUEUES_MUTANTS
from tests.mutants.quorum_table import QUORUM_MUTANTS
from tests.mutants.replication_table import REPLICATION_MUTANTS
from tests.mutants.scarcity_table import SCARCITY_MUTANTS
from tests.mutants.snapshot_table import SNAPSHOT_MUTANTS
from tests.mutants.table import MUTANTS
from tests.mutants.tools_table import TOOLS_MUTANTS
from tests.mutants.validation_table import VALIDATION_MUTANTS


def test_every_mutant_finds_its_text_exactly_once() -> None:
    storage = (*MUTANTS, *SCARCITY_MUTANTS, *REPLICATION_MUTANTS, *MOVES_MUTANTS, *SNAPSHOT_MUTANTS)
    found_by_tests = (*storage, *TOOLS_MUTANTS, *VALIDATION_MUTANTS, *BOUNDS_MUTANTS, *QUEUES_MUTANTS)
    mutants = (*found_by_tests, *BROKER_MUTANTS, *GROUP_MUTANTS, *TRANSACTION_MUTANTS, *QUORUM_MUTANTS)
    lost = [
        f"{mutant.name}: {count} times in src/{mutant.file}" for mutant in mutants if (count := occurrences(mutant, ROOT)) != 1
    ]
    assert not lost, "\n" + "\n".join(lost)
