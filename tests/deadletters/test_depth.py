"""The depth as Prometheus' text."""

from prometheus_client.parser import text_string_to_metric_families

from tidelog.deadletters.depth import Depth, prometheus_text

NOW_MS = 1_000_000


def test_the_text_is_what_prometheus_reads() -> None:
    depths = [Depth("a.b.dlq", 3, NOW_MS - 65_000), Depth("c.d.dlq", 0)]
    families = list(text_string_to_metric_families(prometheus_text(depths, NOW_MS)))
    assert [(family.name, family.type) for family in families] == [
        ("tidelog_dead_letters", "gauge"),
        ("tidelog_dead_letters_oldest_seconds", "gauge"),
    ]
    samples = [(sample.labels["topic"], sample.value) for family in families for sample in family.samples]
    assert samples == [("a.b.dlq", 3), ("c.d.dlq", 0), ("a.b.dlq", 65), ("c.d.dlq", 0)]


def test_an_estimate_has_no_age() -> None:
    text = prometheus_text([Depth("a.b.dlq", 3, is_estimate=True)], NOW_MS)
    assert 'tidelog_dead_letters{topic="a.b.dlq"} 3\n' in text
    assert "oldest" not in text


def test_a_clock_that_is_behind_gives_no_negative_age() -> None:
    assert 'oldest_seconds{topic="a.b.dlq"} 0\n' in prometheus_text([Depth("a.b.dlq", 3, NOW_MS + 5000)], NOW_MS)
