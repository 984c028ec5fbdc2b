"""The topics that a worker reads: sources, their retry topics, and those that were left behind by more retries."""

from tidelog.worker.retry_levels import Role, roles_of


def test_sources_with_their_levels_and_no_others() -> None:
    existing = ["orders", "orders.email.retry.0", "orders.email.retry.7", "orders.email.dlq", "orders.other.retry.8", "returns"]
    assert roles_of(["orders", "returns"], "email", 2, existing) == {
        "orders": Role("orders", -1),
        "orders.email.retry.0": Role("orders", 0),
        "orders.email.retry.1": Role("orders", 1),
        # The worker had more retries once: nothing stays behind there.
        "orders.email.retry.7": Role("orders", 7),
        "returns": Role("returns", -1),
        "returns.email.retry.0": Role("returns", 0),
        "returns.email.retry.1": Role("returns", 1),
    }
