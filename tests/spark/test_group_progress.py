"""Progress as a group's offsets: what is done is shown, and what cannot be shown stops nobody."""

import logging

import pytest

from tests.client.producing import new_topic
from tests.spark.reading import producer, send
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.admin import Admin
from tidelog.client.consumer import Consumer
from tidelog.client.topic_partition import Partition
from tidelog.spark import group_progress
from tidelog.spark.group_progress import GroupProgress
from tidelog.spark.options import Connection


def test_what_is_shown_is_committed(kafka: ToolkitBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_progress, "TIMEOUT_SECONDS", 60)
    topic = new_topic(kafka, partitions=2)
    progress = GroupProgress(Connection(kafka.bootstrap, (("request.timeout.ms", "10000"),)), f"group-{topic}")
    with Admin(kafka.bootstrap) as admin:
        progress.show({Partition(topic, 0): 3, Partition(topic, 1): 0})
        assert admin.group_offsets(f"group-{topic}") == {(topic, 0): 3, (topic, 1): 0}
        progress.show({Partition(topic, 0): 3, Partition(topic, 1): 9})
        assert admin.group_offsets(f"group-{topic}") == {(topic, 0): 3, (topic, 1): 9}
    progress.close()


def test_without_a_broker_it_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(group_progress, "TIMEOUT_SECONDS", 0.5)
    progress = GroupProgress(Connection("127.0.0.1:1", ()), "group")
    with caplog.at_level(logging.WARNING):
        progress.show({Partition("a", 0): 1})
        progress.show({Partition("a", 0): 2})
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the progress is not shown as group group: ")


def test_a_group_with_members_refuses_and_that_is_told(kafka: ToolkitBroker, caplog: pytest.LogCaptureFixture) -> None:
    topic = new_topic(kafka)
    send(producer(kafka.bootstrap), topic, 3)
    progress = GroupProgress(Connection(kafka.bootstrap, ()), f"group-{topic}")
    with Consumer(kafka.bootstrap, group=f"group-{topic}", topics=[topic]) as consumer:
        while not list(consumer.poll(max_records=10)):
            pass
        with caplog.at_level(logging.WARNING):
            progress.show({Partition(topic, 0): 1})
    progress.close()
    assert [f"the progress is not shown as group group-{topic}" in message for message in caplog.messages] == [True]
