"""The way to a cluster: which settings may be given."""

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.deadletters import DeadLetters


@pytest.mark.parametrize("name", ["bootstrap.servers", "isolation.level", "transactional.id", "group.id", "auto.offset.reset"])
def test_settings_that_would_break_a_promise_are_refused_at_once(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"config= must not have {name}"):
        DeadLetters("127.0.0.1:1", config={name: "x"})


@pytest.mark.parametrize("bootstrap", ["", [], ["a:1", ""]])
def test_addresses_that_are_none(bootstrap: str) -> None:
    with pytest.raises(InvalidArgument, match="host:port"):
        DeadLetters(bootstrap)
