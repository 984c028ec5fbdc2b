"""The replicated world while an operator moves its partitions: nothing acknowledged is lost, and every move ends.

The command line runs more seeds: ``python -m simulation.run --world moves --seeds 1-60``.
"""

from simulation.moving_world import MOVE_EVENTS
from simulation.run import describe, run_seed

SEEDS = range(1, 11)


def test_nothing_acknowledged_is_lost_on_the_move_and_moves_begin_end_and_are_cancelled() -> None:
    results = [run_seed(seed, "moves")._replace(trace=[]) for seed in SEEDS]
    failed = [describe(result) for result in results if result.violations]
    assert not failed, "\n".join(failed)
    assert set(MOVE_EVENTS) <= {name for result in results for name in result.events}
    assert run_seed(SEEDS[0], "moves").trace_hash == results[0].trace_hash
