from tidelog.broker import metadata_cache
from tidelog.broker.metadata_cache import BYTES_MAX, ENTRIES_MAX, MetadataCache
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import TopicRecord


def test_an_answer_is_kept_until_the_image_changes() -> None:
    image = ClusterImage()
    cache = MetadataCache(image)
    assert cache.find("q") is None
    cache.keep("q", b"answer")
    assert cache.find("q") == b"answer"
    image.replay([TopicRecord("a", b"0123456789abcdef")], 0)
    assert cache.find("q") is None
    assert len(cache) == 0


def test_many_questions_do_not_pile_up() -> None:
    cache = MetadataCache(ClusterImage())
    for number in range(3 * ENTRIES_MAX):
        cache.keep(number, b"x")
        assert cache.find(number) == b"x"
        assert len(cache) <= ENTRIES_MAX


def test_large_answers_do_not_pile_up() -> None:
    cache = MetadataCache(ClusterImage())
    cache.keep("too large", bytes(BYTES_MAX + 1))
    assert cache.find("too large") is None
    for number in range(5):
        cache.keep(number, bytes(BYTES_MAX // 2))
        assert len(cache) <= 2
    assert metadata_cache.BYTES_MAX == BYTES_MAX
