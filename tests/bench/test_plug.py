"""The ledger of ``make plug``: what counts as acknowledged, and what as lost. The cuts themselves need root and loop devices."""

import os

import pytest

from bench.plug.__main__ import main
from bench.plug.ledger import Account, Ledger, lost_all


def test_only_what_was_acknowledged_before_the_cut_can_be_lost() -> None:
    ledger = Ledger()
    for number in range(5):
        ledger.acknowledge("plain", number, b"v")
    lengths = ledger.lengths()
    # It belongs to a life that did not happen.
    ledger.acknowledge("plain", 5, b"v")
    assert ledger.settle(lengths, {"plain": lambda entry: entry.place != 3}) == 1
    assert ledger.accounts == {"plain": Account(acknowledged=5, lost=1, cuts_with_loss=1)}


def test_a_loss_is_counted_once_and_earlier_lives_are_compared_again() -> None:
    ledger = Ledger()
    ledger.acknowledge("plain", 0, b"v")
    ledger.acknowledge("plain", 1, b"v")
    assert ledger.settle(ledger.lengths(), {"plain": lambda entry: entry.place == 0}) == 1
    ledger.acknowledge("plain", 2, b"v")
    assert ledger.new_entries() == 1
    # The second cut takes what the first had left.
    assert ledger.settle(ledger.lengths(), {"plain": lambda entry: entry.place == 2}) == 1
    assert ledger.accounts["plain"] == Account(acknowledged=3, lost=2, cuts_with_loss=2)
    assert ledger.settle(ledger.lengths(), lost_all(ledger)) == 1


def test_without_root_it_says_so_and_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["tidelog", "--cuts", "1"]) == 0
    assert "The plug was not pulled: mounting needs root." in capsys.readouterr().out
