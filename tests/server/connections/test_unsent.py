"""Answers that clients do not take are bounded in bytes, and end where most are held."""

from dataclasses import dataclass

import pytest

from deltahub.server.connections import unsent
from deltahub.server.connections.unsent import UnsentBytes


@dataclass(eq=False)
class Sender:
    is_aborted: bool = False

    def abort(self) -> None:
        self.is_aborted = True


def test_the_address_that_takes_least_loses_its_oldest_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unsent, "MAX_UNSENT_BYTES", 100)
    held = UnsentBytes()
    one, two, three, four = (Sender() for _ in range(4))
    held.hold(one, "10.0.0.1", 40)
    held.hold(two, "10.0.0.2", 30)
    held.hold(three, "10.0.0.2", 30)
    assert not any(sender.is_aborted for sender in (one, two, three))
    held.hold(four, "10.0.0.3", 10)
    assert [sender.is_aborted for sender in (one, two, three, four)] == [False, True, False, False]
    held.drop(one)
    held.hold(Sender(), "10.0.0.4", 60)
    assert not three.is_aborted


def test_one_answer_may_be_larger_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent, "MAX_UNSENT_BYTES", 100)
    held = UnsentBytes()
    small, large = Sender(), Sender()
    held.hold(small, "10.0.0.1", 1)
    held.hold(large, "10.0.0.2", 1000)
    assert (small.is_aborted, large.is_aborted) == (True, False)
    held.hold(Sender(), "10.0.0.1", 1)
    assert large.is_aborted
