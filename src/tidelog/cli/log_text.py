"""The text of ``tidelog log``: items, findings and plans as lines for people."""

from collections.abc import Mapping

from tidelog.cli.output import count_of, format_bytes
from tidelog.log.inspection.directory_facts import Finding
from tidelog.log.inspection.dump import Item
from tidelog.log.inspection.repair import RepairPlan


def item_text(item: Item, width: int) -> str:
    """One line; ``width`` bounds each key and value."""
    kind = item["kind"]
    if kind == "batch":
        return _batch_text(item)
    if kind == "record":
        return _record_text(item, width)
    if kind == "segment":
        return f"{item['path']}: {format_bytes(_int(item['size_bytes']))}"
    if kind == "damage":
        at = "" if item["position"] is None else f" at byte {item['position']} ({item['bytes_left']} bytes from there to its end)"
        return f"DAMAGE: {item['path']}{at}: {item['reason']}"
    fields = (f"{name.replace('_', ' ')} {_plain(value)}" for name, value in item.items() if name != "kind")
    return f"{kind}: {', '.join(fields)}"


def _batch_text(item: Item) -> str:
    parts = [
        f"offsets {item['base_offset']}..{item['last_offset']}",
        count_of(_int(item["records"]), "record"),
        f"at {item['position']}",
        f"{item['size_bytes']} B",
        f"leader epoch {item['leader_epoch']}",
    ]
    if _int(item["producer_id"]) >= 0:
        sequences = f" sequences {item['base_sequence']}..{item['last_sequence']}" if _int(item["base_sequence"]) >= 0 else ""
        parts.append(f"producer {item['producer_id']} epoch {item['producer_epoch']}{sequences}")
    parts.append("uncompressed" if item["compression"] == "none" else str(item["compression"]))
    parts.append(f"{item['timestamp_type']} {item['max_timestamp']} ({item['max_timestamp_ms']} ms)")
    if item["is_transactional"]:
        parts.append("transactional")
    if item["is_control"]:
        parts.append(f"control {item['control_type']}")
    if item["delete_horizon_ms"] is not None:
        parts.append(f"delete horizon {item['delete_horizon_ms']} ms")
    parts.append("CRC valid" if item["crc_is_valid"] else "CRC INVALID")
    return ", ".join(parts)


def _record_text(item: Item, width: int) -> str:
    parts = [f"  offset {item['offset']}", f"{item['timestamp']} ({item['timestamp_ms']} ms)"]
    if "control_type" in item:
        return ", ".join((*parts, f"control {item['control_type']}"))
    parts += [f"key {_content(item, 'key', width)}", f"value {_content(item, 'value', width)}"]
    headers = item["headers"]
    if isinstance(headers, list) and headers:
        parts.append(
            "headers " + ", ".join(f"{_bounded(header['name'], width)}={_content(header, 'value', width)}" for header in headers)
        )
    return ", ".join(parts)


def _content(item: Mapping[str, object], name: str, width: int) -> str:
    if f"{name}_hex" in item:
        digits = str(item[f"{name}_hex"])
        return "0x" + (digits if len(digits) + 2 <= width else f"{digits[: max(2, width - 2)]}... ({len(digits) // 2} bytes)")
    content = item[name]
    return "null" if content is None else _bounded(str(content), width)


def _bounded(text: str, width: int) -> str:
    return repr(text) if len(text) <= width else f"{text[:width]!r}... ({len(text)} characters)"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _int(value: object) -> int:
    assert isinstance(value, int), value
    return value


def finding_text(finding: Finding) -> str:
    at = "" if finding.position is None else f" at byte {finding.position}"
    near = "" if finding.offset is None else f", offset {finding.offset}"
    # A checkpoint's error names its file already.
    place = "" if finding.problem.startswith(finding.path) else f"{finding.path}{at}{near}: "
    return f"{finding.severity}: {place}{finding.problem}. {finding.meaning[:1].upper()}{finding.meaning[1:]}."


def plan_text(plan: RepairPlan) -> list[str]:
    """What is wrong, what ``--yes`` would do and cost, and what else could be done."""
    name = plan.facts.name
    if plan.problem is None:
        return [f"{name}: nothing to repair: the log is sound from the recovery point {plan.facts.recovery_point} on."]
    lines = [f"{name}: {plan.path} at byte {plan.position}, offset {plan.cut_offset}: {plan.problem}."]
    if plan.is_torn_tail:
        lines.append(
            f"  It is above the durable mark {plan.durable_mark}, a torn tail: the next start cuts it. Nothing to repair."
        )
        return lines
    lines.append(f"  Everything below offset {plan.durable_mark} was acknowledged as durable.")
    if plan.lost_offsets:
        first_lost = max(plan.cut_offset, plan.facts.log_start_offset)
        lines.append(
            f"  Lost for good by a repair: {count_of(plan.lost_offsets, 'offset')}, {first_lost} to {plan.durable_mark - 1}."
        )
    if plan.cut_bytes:
        lines.append(f"  Cut: the last {plan.cut_bytes} bytes of {plan.path}.")
    if plan.later_segments:
        first, last = plan.later_segments[0].log_path, plan.later_segments[-1].log_path
        lines.append(
            f"  Taken out: {count_of(len(plan.later_segments), 'segment')}, {plan.later_bytes} bytes, {first} to {last}."
        )
    lines.append(f"  The log then ends at offset {plan.cut_offset}. What is cut stays beside it, in files that end in -damaged.")
    lines.append("  Choices: put the file back from a backup or another replica, and no offset is lost; or cut: add --yes.")
    return lines
