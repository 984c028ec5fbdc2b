"""What people and programs are told of an audit."""

from tidelog.spark.pipelines.audit.report import (
    SHOWN_MAX,
    AuditComparison,
    AuditFinding,
    FindingRange,
    document,
    finding_ranges,
    outcome,
)

CLEAN = AuditComparison("orders", "lake/orders", 4, 1000, 900, 900, 2, 0, 1.0, 4, 0, 0, 0)


def test_findings_side_by_side_are_one() -> None:
    found = [
        AuditFinding("gap", 0, 8, ""),
        AuditFinding("gap", 0, 7, ""),
        AuditFinding("changed", 0, 9, "value"),
        AuditFinding("gap", 0, 9, ""),
        AuditFinding("gap", 0, 11, ""),
        AuditFinding("gap", 1, 12, ""),
        AuditFinding("foreign", None, None, "without a place in the topic"),
    ]
    assert finding_ranges(found) == [
        FindingRange("foreign", None, None, None, "without a place in the topic"),
        FindingRange("gap", 0, 7, 9, ""),
        FindingRange("changed", 0, 9, 9, "value"),
        FindingRange("gap", 0, 11, 11, ""),
        FindingRange("gap", 1, 12, 12, ""),
    ]
    assert [run.place("orders") for run in finding_ranges(found)[:3]] == [
        "orders[?] offset ?",
        "orders[0] offsets 7 to 9",
        "orders[0] offset 9",
    ]


def test_a_clean_one() -> None:
    found = outcome(CLEAN, {"expired": 30}, [])
    assert (found.exit_code, found.figures["expired since"], found.figures["gaps"]) == (0, 30, 0)
    assert found.summary == "lake/orders (version 4) holds exactly what orders holds: 900 rows compared"
    sample = CLEAN._replace(fraction=0.01, seed=17, later_rows=None, later_offsets=12, lost_offsets=5)
    found = outcome(sample, {}, [])
    assert "in a sample of 0.01" in found.summary
    assert found.summary.endswith("; 12 offsets not archived yet; 5 offsets lost before they were archived")
    part = outcome(CLEAN._replace(ranges=("0:5-6", "1")), {}, [])
    assert "holds exactly what orders holds in offsets 0:5-6, 1:" in part.summary
    assert found.figures["sample"] == "0.01 (--sample 0.01 --seed 17)"
    assert found.figures["offsets not archived yet"] == 12
    assert found.figures["offsets lost before they were archived"] == 5
    assert document(CLEAN, {}, [])["is_clean"]


def test_all_findings_are_counted_and_the_first_are_shown() -> None:
    findings = [AuditFinding("gap", 0, 2 * number, "") for number in range(SHOWN_MAX + 20)]
    found = outcome(CLEAN, {"gap": 5_000, "changed": 1}, findings)
    assert found.exit_code == 3
    assert "5,000 gaps, 1 changed row" in found.summary
    assert sum(place.startswith("orders[") for place in found.figures) == SHOWN_MAX
    assert found.figures["more findings"] == "not shown; all are counted"
    written = document(CLEAN, {"gap": 5_000, "changed": 1}, findings)
    assert (len(written["findings"]), written["findings_are_all"], written["is_clean"]) == (SHOWN_MAX + 20, False, False)


def test_two_findings_at_one_place() -> None:
    found = outcome(
        CLEAN, {"duplicate": 1, "changed": 1}, [AuditFinding("duplicate", 1, 5, "2 copies"), AuditFinding("changed", 1, 5, "key")]
    )
    assert found.figures["orders[1] offset 5"] == "changed: key; duplicate: 2 copies"
