"""What a power cut leaves of a file's bytes.

Most tests take many crash images and look at the set of outcomes: what is possible has to turn up, what is not never may.
"""

from collections.abc import Callable

from simulation.inode import PAGE_BYTES, SECTOR_BYTES, Inode
from simulation.randomness import SimulatedRandomness

PAGE_A, PAGE_B, PAGE_C = b"a" * PAGE_BYTES, b"b" * PAGE_BYTES, b"c" * PAGE_BYTES
ZEROS = bytes(PAGE_BYTES)
IMAGES = 600


def synced(data: bytes) -> Inode:
    inode = Inode(0)
    inode.write(0, data)
    inode.sync()
    return inode


def outcomes(inode: Inode) -> list[bytes]:
    randomness = SimulatedRandomness("outcomes")
    before = inode.read(0, 1 << 30)
    images = [inode.after_power_cut(randomness).read(0, 1 << 30) for _ in range(IMAGES)]
    assert inode.read(0, 1 << 30) == before
    return images


def some(images: list[bytes], matches: Callable[[bytes], bool]) -> bool:
    return any(matches(image) for image in images)


def test_synced_bytes_are_always_kept() -> None:
    inode = synced(PAGE_A * 2)
    inode.write(2 * PAGE_BYTES, PAGE_B)
    assert all(image[: 2 * PAGE_BYTES] == PAGE_A * 2 for image in outcomes(inode))
    inode.sync()
    assert set(outcomes(inode)) == {PAGE_A * 2 + PAGE_B}
    assert inode.after_power_cut(None).read(0, 1 << 20) == PAGE_A * 2 + PAGE_B


def test_a_later_page_may_be_kept_and_an_earlier_one_lost() -> None:
    inode = Inode(0)
    inode.write(0, PAGE_A)
    inode.write(PAGE_BYTES, PAGE_B)
    inode.write(2 * PAGE_BYTES, PAGE_C)
    images = outcomes(inode)
    for expected in (
        PAGE_A + PAGE_B + PAGE_C,
        ZEROS + PAGE_B + PAGE_C,
        PAGE_A + ZEROS + PAGE_C,
        PAGE_A + PAGE_B + ZEROS,
        ZEROS + ZEROS + ZEROS,
        PAGE_A + PAGE_B,
        b"",
    ):
        assert expected in images


def test_an_overwritten_page_may_show_its_old_content() -> None:
    inode = synced(PAGE_A * 2)
    inode.write(0, PAGE_B * 2)
    assert {PAGE_A + PAGE_B, PAGE_B + PAGE_A, PAGE_A * 2, PAGE_B * 2} <= set(outcomes(inode))
    assert all(len(image) == 2 * PAGE_BYTES for image in outcomes(inode))


def test_a_page_is_torn_between_sectors_only() -> None:
    inode = synced(PAGE_A)
    inode.write(0, PAGE_B)
    images = outcomes(inode)
    for image in images:
        for start in range(0, PAGE_BYTES, SECTOR_BYTES):
            assert len(set(image[start : start + SECTOR_BYTES])) == 1
    assert some(images, lambda image: image[:SECTOR_BYTES] != image[-SECTOR_BYTES:])


def test_the_size_is_any_between_the_synced_and_the_written_one() -> None:
    inode = synced(b"s" * 100)
    inode.write(100, b"w" * 900)
    images = outcomes(inode)
    sizes = {len(image) for image in images}
    assert min(sizes) == 100
    assert max(sizes) == 1_000
    assert len(sizes) > 50
    # One page: what is inside the size is the new page, the old one with zeros, or torn at a sector.
    for image in images:
        assert image[:100] == b"s" * 100
        for start, end in ((100, 512), (512, 1_000)):
            assert set(image[start:end]) <= {0} or set(image[start:end]) <= {ord("w")}


def test_without_randomness_only_synced_bytes_are_left() -> None:
    inode = synced(PAGE_A * 2)
    inode.write(10, b"new")
    inode.write(2 * PAGE_BYTES, b"more")
    assert inode.after_power_cut(None).read(0, 1 << 20) == PAGE_A * 2
    inode.truncate(5)
    assert inode.after_power_cut(None).read(0, 1 << 20) == PAGE_A * 2


def test_a_truncation_is_kept_or_lost() -> None:
    inode = synced(PAGE_A * 3)
    inode.truncate(PAGE_BYTES)
    assert set(outcomes(inode)) == {PAGE_A, PAGE_A * 3}
    inode.sync()
    assert set(outcomes(inode)) == {PAGE_A}


def test_what_was_truncated_away_does_not_come_back_under_new_bytes() -> None:
    inode = synced(PAGE_A * 3)
    inode.truncate(PAGE_BYTES)
    inode.write(PAGE_BYTES, PAGE_B)
    images = outcomes(inode)
    assert {PAGE_A, PAGE_A * 3, PAGE_A + PAGE_B, PAGE_A + ZEROS} <= set(images)
    for image in images:
        # Either the truncation is lost with all that came after it, or nothing old is left behind it.
        assert image == PAGE_A * 3 or b"a" not in image[PAGE_BYTES:]


def test_kill_keeps_everything_and_it_is_still_not_synced() -> None:
    inode = synced(PAGE_A)
    inode.write(0, PAGE_B)
    inode.write(PAGE_BYTES, PAGE_C)
    survivor = inode.after_kill()
    assert survivor.read(0, 1 << 20) == PAGE_B + PAGE_C
    assert survivor.after_power_cut(None).read(0, 1 << 20) == PAGE_A
    survivor.sync()
    assert survivor.after_power_cut(None).read(0, 1 << 20) == PAGE_B + PAGE_C
    # Nothing of this reached the first one.
    assert inode.after_power_cut(None).read(0, 1 << 20) == PAGE_A


def test_images_are_independent() -> None:
    inode = synced(PAGE_A)
    image = inode.after_power_cut(None)
    image.write(0, b"image")
    inode.write(0, b"inode")
    assert image.read(0, 6) == b"imagea"
    assert inode.read(0, 6) == b"inodea"
    assert inode.after_power_cut(None).read(0, 6) == b"aaaaaa"
    untouched = inode.after_kill()
    inode.write(0, b"again")
    assert untouched.read(0, 6) == b"inodea"


def test_after_a_failed_sync_the_pages_are_clean_but_not_durable() -> None:
    inode = synced(PAGE_A * 2)
    inode.write(0, PAGE_B)
    inode.fail_sync()
    assert inode.read(0, PAGE_BYTES) == PAGE_B
    inode.sync()
    assert inode.read(0, PAGE_BYTES) == PAGE_B
    assert set(outcomes(inode)) == {PAGE_A * 2}
    # The next process sees the cache, until it drops it.
    survivor = inode.after_kill()
    assert survivor.read(0, PAGE_BYTES) == PAGE_B
    survivor.drop_clean_pages()
    assert survivor.read(0, 2 * PAGE_BYTES) == PAGE_A * 2


def test_after_a_failed_sync_new_bytes_read_as_zeros_once_the_cache_is_gone() -> None:
    inode = synced(b"a" * 100)
    inode.write(100, b"b" * 100)
    inode.fail_sync()
    inode.sync()
    inode.drop_clean_pages()
    assert inode.read(0, 1_000) == b"a" * 100 + bytes(100)


def test_a_page_written_again_after_a_failed_sync_becomes_durable_whole() -> None:
    inode = synced(PAGE_A)
    inode.write(0, b"b" * 10)
    inode.fail_sync()
    inode.write(20, b"c" * 10)
    assert inode.after_power_cut(None).read(0, PAGE_BYTES) == PAGE_A
    inode.sync()
    expected = b"b" * 10 + b"a" * 10 + b"c" * 10
    assert inode.after_power_cut(None).read(0, 30) == expected


def test_a_dropped_cache_keeps_dirty_pages() -> None:
    inode = synced(PAGE_A)
    inode.write(0, PAGE_B)
    inode.drop_clean_pages()
    assert inode.read(0, PAGE_BYTES) == PAGE_B


def test_a_flipped_bit_is_on_the_disk() -> None:
    inode = synced(PAGE_A)
    inode.flip_bit(7, 3)
    assert inode.read(0, PAGE_BYTES) == b"a" * 7 + bytes([ord("a") ^ 8]) + b"a" * (PAGE_BYTES - 8)
    assert inode.after_power_cut(None).read(7, 1) == bytes([ord("a") ^ 8])
    inode.write(0, PAGE_B)
    inode.flip_bit(7, 3)
    assert inode.after_power_cut(None).read(0, PAGE_BYTES) == PAGE_A
