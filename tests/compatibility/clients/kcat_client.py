"""kcat: a program, on whichever librdkafka the distribution has: an older one than that of confluent-kafka.

It takes text and gives JSON, so values and keys are text here. Nulls and headers hold for a whole run of it: records that differ
in them are sent by several.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import groupby

from tests.compatibility.clients.client import CALL_SECONDS_MAX, SEND_BYTES_MAX, Codec, Refused, Watermarks
from tests.compatibility.kafka_records import ReadRecord, SentRecord

# Characters that no test sends.
RECORD_END, KEY_END = "\x1e", "\x1f"
FILE_BYTES_MIN = 1024 * 1024
# What kcat says of an offset that it was not told: the end.
_QUERIED = re.compile(r"offset (-?\d+)")
# kcat prints librdkafka's words, not the number.
_CODES = {
    "Message size too large": 10,
    "Broker: Unknown topic or partition": 3,
    "Local: Unknown topic": 3,
    "Broker: Offset out of range": 1,
}


class KcatClient:
    name = "kcat"
    sets_timestamps = False

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers

    def run(self, *arguments: str, text: bytes = b"") -> str:
        command = ["kcat", "-b", self._bootstrap_servers, "-m", str(int(CALL_SECONDS_MAX)), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, timeout=CALL_SECONDS_MAX, check=False)
        said = done.stderr.decode()
        if done.returncode != 0:
            raise Refused(next((code for words, code in _CODES.items() if words in said), -1), said.strip())
        return done.stdout.decode()

    def can_send(self, record: SentRecord) -> bool:
        if record.key is None and not record.value:
            return False  # An empty line is none.
        if record.key == b"" and record.value is None:
            return False  # Empty is null for both or for none.
        return all(value is not None for _, value in record.headers)

    def send(
        self, topic: str, records: Sequence[SentRecord], *, partition: int = 0, codec: Codec = Codec.NONE, acks: str = "all"
    ) -> None:
        settings = [f"acks={acks}", f"message.max.bytes={SEND_BYTES_MAX}", "enable.idempotence=false", "linger.ms=50"]
        options = [option for setting in settings for option in ("-X", setting)]
        where = ["-P", "-t", topic, "-p", str(partition), "-z", codec.value]
        for (has_key, has_value, headers), alike in groupby(records, _shape):
            shape = [option for name, value in headers for option in ("-H", f"{name}={(value or b'').decode()}")]
            shape += () if has_value else ("-Z",)
            lines = [*alike]
            if len(lines[0].value or b"") >= FILE_BYTES_MIN:
                for record in lines:
                    self._send_file(record, *where, *options, *shape)
            else:
                text = b"".join(_line(record) + RECORD_END.encode() for record in lines)
                self.run(*where, "-D", RECORD_END, *(("-K", KEY_END) if has_key else ()), *options, *shape, text=text)

    def _send_file(self, record: SentRecord, *options: str) -> None:
        """It looks for the end of a long line over and over, but takes a whole file as one value."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(record.value or b"")
            file.flush()
            self.run(*options, *(("-k", record.key.decode()) if record.key is not None else ()), file.name)

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int = 0, isolation: str = "read_uncommitted"
    ) -> list[ReadRecord]:
        return self._read(topic, count, partition, str(offset), "-X", f"isolation.level={isolation}")

    def read_since(self, topic: str, count: int, timestamp: int, *, partition: int = 0) -> list[ReadRecord]:
        return self._read(topic, count, partition, f"s@{timestamp}")

    def _read(self, topic: str, count: int, partition: int, start: str, *options: str) -> list[ReadRecord]:
        settings = ["-X", "check.crcs=true", "-X", "topic.auto.offset.reset=error", *options]
        where = ["-C", "-q", "-t", topic, "-p", str(partition), "-o", start, "-c", str(count), "-J"]
        return [_read_record(line) for line in self.run(*where, *settings).splitlines()]

    def watermarks(self, topic: str, partition: int = 0) -> Watermarks:
        return Watermarks(self._query(topic, partition, -2), self._query(topic, partition, -1))

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        found = self._query(topic, partition, timestamp)
        return None if found == self._query(topic, partition, -1) or found < 0 else found

    def _query(self, topic: str, partition: int, timestamp: int) -> int:
        found = _QUERIED.search(self.run("-Q", "-t", f"{topic}:{partition}:{timestamp}"))
        assert found is not None, "kcat -Q says an offset"
        return int(found[1])


def _shape(record: SentRecord) -> tuple[bool, bool, tuple[tuple[str, bytes | None], ...]]:
    """What must be the same for records to be sent by one run."""
    return record.key is not None, record.value is not None, record.headers


def _line(record: SentRecord) -> bytes:
    value = record.value or b""
    return value if record.key is None else record.key + KEY_END.encode() + value


def _read_record(line: str) -> ReadRecord:
    fields = json.loads(line)
    key, value = fields["key"], fields["payload"]
    flat = fields.get("headers", [])
    headers = tuple((name, None if text is None else text.encode()) for name, text in zip(flat[::2], flat[1::2], strict=True))
    return ReadRecord(
        fields["offset"],
        fields["ts"],
        fields["tstype"] == "logappend",
        None if key is None else key.encode(),
        None if value is None else value.encode(),
        headers,
    )
