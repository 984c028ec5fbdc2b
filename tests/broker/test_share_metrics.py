"""The figures of share groups: backlog, acquired, expiries, releases, dead letters."""

from tests.broker.handlers.share_client import GROUP, ShareMember
from tests.broker.handlers.test_share_dead_letters import dead_machine
from tests.broker.test_metric_sources import Shown
from tidelog.queues.acknowledgements import AcknowledgeType


def test_figures_follow_what_members_do() -> None:
    machine, _, member = dead_machine(share_record_lock_duration_ms="2000")
    assert isinstance(member, ShareMember)
    shown = Shown(machine)
    assert shown.value("tidelog_share_sessions") == 1
    assert shown.value("tidelog_share_acquired", GROUP) == shown.value("tidelog_share_backlog", GROUP) == 3
    member.settle(0, 1, AcknowledgeType.REJECT, AcknowledgeType.RELEASE)
    shown = Shown(machine)
    assert shown.value("tidelog_share_releases_total") == shown.value("tidelog_share_dead_letters_total") == 1
    assert (shown.value("tidelog_share_acquired", GROUP), shown.value("tidelog_share_backlog", GROUP)) == (1, 2)
    machine.run_for(3_000)
    shown = Shown(machine)
    assert shown.value("tidelog_share_lock_expiries_total") == 1
    assert (shown.value("tidelog_share_acquired", GROUP), shown.value("tidelog_share_backlog", GROUP)) == (0, 2)
