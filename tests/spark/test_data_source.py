"""What Spark loads for a stream that only reads."""

import subprocess
import sys

# A Python process is started for every stream, and the stream waits for it.
NOT_NEEDED = ("tidelog.spark.sink.writers", "tidelog.client.fetch.librdkafka_source", "confluent_kafka.admin", "pyarrow.compute")


def test_a_stream_does_not_wait_for_what_only_others_need() -> None:
    program = f"import sys, tidelog.spark.data_source; print([name for name in {NOT_NEEDED} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
