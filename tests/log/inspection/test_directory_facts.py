"""Which segments count: compaction's swaps as a start would finish them, and nothing that is on its way out."""

from tests.log.disks import DIRECTORY, simulated_disk, write_file
from tests.log.harness import batch
from tidelog.log.compaction.swap import finish_swaps
from tidelog.log.inspection.directory_facts import find_segments


def test_a_decided_swap_stands_for_its_originals() -> None:
    disk = simulated_disk()
    files = {
        "00000000000000000000.log": batch(base_offset=0),
        "00000000000000000005.log": batch(base_offset=5),
        "00000000000000000009.log": batch(base_offset=9),
        "00000000000000000000.log.swap": batch(base_offset=0) + batch(base_offset=8),
        "00000000000000000009.log.cleaned": b"",
        "00000000000000000003.log.deleted": b"",
        "00000000000000000020.log.1704067200000-damaged": b"",
        "00000000000000000030.index": b"",
    }
    for name, content in files.items():
        write_file(disk, f"{DIRECTORY}/{name}", content)
    found = [(segment.base_offset, segment.state) for segment in find_segments(disk, DIRECTORY)]
    assert found == [(0, ".swap"), (9, "")]
    assert [disk.exists(segment.log_path) for segment in find_segments(disk, DIRECTORY)] == [True, True]
    # The same segments that a start is left with.
    finish_swaps(disk, DIRECTORY)
    assert [(segment.base_offset, segment.state) for segment in find_segments(disk, DIRECTORY)] == [(0, ""), (9, "")]


def test_a_swap_that_cannot_be_read_counts_as_far_as_it_can() -> None:
    disk = simulated_disk()
    write_file(disk, f"{DIRECTORY}/00000000000000000000.log.swap", batch(base_offset=0) + b"torn")
    write_file(disk, f"{DIRECTORY}/00000000000000000004.log", batch(base_offset=4))
    assert [segment.base_offset for segment in find_segments(disk, DIRECTORY)] == [0, 4]
