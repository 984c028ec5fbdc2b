"""Planted bugs of the metadata's snapshots: each breaks one promise, and each must be found by their tests."""

from tests.mutants.table import Mutant

FILE = "tidelog/raft/snapshot_file.py"
SNAPSHOTS = "tidelog/broker/metadata_snapshots.py"

SNAPSHOT_TESTS = (
    "tests/raft/test_snapshot_file.py",
    "tests/metadata/test_image_records.py",
    "tests/broker/test_metadata_snapshots.py",
)

SNAPSHOT_MUTANTS = (
    Mutant(
        "a snapshot without a footer is trusted",
        "a torn snapshot never counts",
        FILE,
        "    if not records or not isinstance(records[-1], SnapshotFooter):\n",
        "    if not records:\n",
    ),
    Mutant(
        "a snapshot's checksums are not looked at",
        "a damaged snapshot never counts",
        FILE,
        "        if not crc_is_valid(batch, 0, header):\n",
        "        if header.magic < 0:\n",
    ),
    Mutant(
        "a snapshot is renamed before it is synced",
        "whoever finds the name of a snapshot finds all of it",
        FILE,
        '    disk.open(path, "write").sync()\n',
        "",
    ),
    Mutant(
        "the log is deleted before its snapshot is durable",
        "what a snapshot covers is deleted only when the snapshot is durable",
        SNAPSHOTS,
        "        yield writer.seal\n        ports.log.add_snapshot(snapshot_id, writer.position, summary)\n",
        "        ports.log.add_snapshot(snapshot_id, writer.position, summary)\n        self._clean()\n"
        "        yield writer.seal\n",
    ),
    Mutant(
        "the log begins again before the fetched snapshot is durable",
        "a crash while a snapshot is installed leaves the old state or the new one",
        SNAPSHOTS,
        "        yield partial(snapshots.seal_fetched, snapshot_id)\n        size = file.size()\n",
        "        size = file.size()\n",
    ),
    Mutant(
        "the log keeps its end below an installed snapshot",
        "after a crash the log begins where its snapshot ends",
        "tidelog/broker/metadata_quorum.py",
        "        if snapshot is None or not ports.log.is_behind_snapshot:\n",
        "        if snapshot is None or ports.log.end_offset >= 0:\n",
    ),
    Mutant(
        "a frozen image shares what changes",
        "a snapshot is the image at one offset",
        "tidelog/metadata/topics.py",
        "        if topic.topic_id in self._frozen_ids:\n",
        "        if topic.topic_id == b'':\n",
    ),
    Mutant(
        "a snapshot within a transaction",
        "a snapshot holds all of a decision or nothing",
        SNAPSHOTS,
        "        return None if self._image.in_transaction else map(",
        "        self._image._open_transaction = None\n        return map(",
    ),
    Mutant(
        "a snapshot without the voters",
        "a node that begins with a snapshot knows the voters",
        "tidelog/raft/voters.py",
        "        return (version,) if voters is None else (version, voters)\n",
        "        return (version,)\n",
    ),
)
