"""A driver in a process of its own that dies by kill -9 in the middle of the second chunk, with rows of it in the topic already.

Argument: JSON with the options of the replay, and a directory for Spark's own files.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any
from unittest.mock import patch

from tests.spark.conftest import config_in
from tidelog.client.fetch.client import FetchClient
from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.pipelines.pipeline import Silent
from tidelog.spark.pipelines.replay import pipeline as replay
from tidelog.spark.spark_session import session

CHUNK = 1
PARTITIONS = 3


def die(pids: tuple[int, ...]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def ends(bootstrap: str, topic: str) -> int:
    with FetchClient(bootstrap, isolation="read_uncommitted") as client:
        return sum(client.offsets([TopicPartition(topic, number) for number in range(PARTITIONS)], "latest").values())


def main(text: str) -> None:
    given = json.loads(text)
    spark = session(app_name="replay", master="local[2]", config=config_in(given["local"]))
    options = replay.ReplayOptions(**given["options"])
    pids = spark.sparkContext._gateway.proc.pid, os.getpid()  # type: ignore[union-attr]  # started by this process
    send = replay.send_chunk

    def deadly(*arguments: Any) -> None:
        if arguments[-1].number == CHUNK:
            before = ends(options.bootstrap, options.topic)

            def watch() -> None:
                while ends(options.bootstrap, options.topic) == before:
                    time.sleep(0.005)
                die(pids)

            threading.Thread(target=watch, daemon=True).start()
        send(*arguments)
        if arguments[-1].number == CHUNK:
            die(pids)

    with patch.object(replay, "send_chunk", deadly):
        replay.run(spark, options, Silent())


if __name__ == "__main__":
    main(sys.argv[1])
