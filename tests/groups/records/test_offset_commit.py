"""What ``test_codec`` does not see: keys that are kept."""

from tidelog.groups.records import OffsetCommitRecord, offset_commit


def test_the_key_of_a_partition_is_made_once() -> None:
    # What earlier tests left may fill it.
    offset_commit._cached_key.cache_clear()
    records = [OffsetCommitRecord("the key of a partition", topic, index, None) for topic in ("t", "u") for index in (0, 1)]
    keys = [offset_commit.encode(record)[0] for record in records * 2]
    assert keys[:4] == keys[4:]
    assert [offset_commit.decode(key, None) for key in keys[:4]] == records
    assert offset_commit._cached_key.cache_info().currsize == 4


def test_keys_of_long_group_ids_are_not_kept() -> None:
    kept = offset_commit._cached_key.cache_info().currsize
    record = OffsetCommitRecord("g" * (offset_commit.CACHED_GROUP_LENGTH_MAX + 1), "t", 0, None)
    key, value = offset_commit.encode(record)
    assert offset_commit.decode(key, value) == record
    assert offset_commit._cached_key.cache_info().currsize == kept
