"""What a replay sent, or would send. Pure."""

from tidelog.spark.pipelines.pipeline import Outcome
from tidelog.spark.pipelines.replay_plan import Plan
from tidelog.spark.pipelines.topic_facts import TopicFacts

# A run that made its plan itself sends what it has just counted.
COUNTED = "by the plan: rows deleted from the table since, and a chunk that the run before sent last, may be among them"


def outcome_of(plan: Plan, topic: str, before: int, done: int, *, is_dry: bool, note: str, is_resumed: bool = False) -> Outcome:
    """``before`` and ``done`` are chunks: sent by earlier runs, and by now. ``is_resumed``: an earlier run made the plan."""
    sent = plan.rows_of(done) - plan.rows_of(before)
    partitions = sorted({each.partition for chunk in plan.chunks for each in chunk.ranges})
    figures: dict[str, int | float | str] = {
        "rows": plan.rows,
        "sent by this run": sent,
        "sent before": plan.rows_of(before),
        "chunks": len(plan.chunks),
        "offsets": ", ".join(f"{number}: {_extent(plan, number)}" for number in partitions) or "none",
        "partitions": "the same as in the archive" if plan.keeps_partitions else "by key",
        "table version": plan.table_version,
        "id": plan.replay_id,
    }
    if is_resumed and done > before:
        figures["counted"] = COUNTED
    if note:
        figures["note"] = note
    return Outcome(_summary(plan, topic, before, done, is_dry=is_dry, is_resumed=is_resumed), figures)


def _summary(plan: Plan, topic: str, before: int, done: int, *, is_dry: bool, is_resumed: bool) -> str:
    if not plan.chunks:
        return "nothing to replay: the table has no row in that range"
    left = plan.rows - plan.rows_of(before)
    if before == len(plan.chunks):
        return f"replay {plan.replay_id} was done before: {plan.rows:,} rows are in {topic}; another --id sends them again"
    if is_dry:
        return f"{left:,} rows would be sent to {topic}, in {len(plan.chunks) - before:,} chunks; nothing was sent"
    sent = f"{plan.rows_of(done) - plan.rows_of(before):,} rows {'of the plan ' if is_resumed else ''}sent to {topic}"
    if done < len(plan.chunks):
        return f"{sent}; stopped, {plan.rows - plan.rows_of(done):,} are left: the same command goes on from here"
    return sent


def _extent(plan: Plan, partition: int) -> str:
    ranges = [each for chunk in plan.chunks for each in chunk.ranges if each.partition == partition]
    return f"{ranges[0].start} to {ranges[-1].end - 1}"


def retention_note(facts: TopicFacts, oldest_ms: int | None, now_ms: int) -> str:
    """A topic keeps messages by their own time: old ones are deleted soon after they come."""
    kept_ms = int(facts.settings.get("retention.ms", "-1"))
    is_deleting = "delete" in facts.settings.get("cleanup.policy", "delete")
    if oldest_ms is None or kept_ms < 0 or not is_deleting or oldest_ms >= now_ms - kept_ms:
        return ""
    return (
        f"the oldest message is {(now_ms - oldest_ms) // 86_400_000} days old, and {facts.topic} keeps {kept_ms / 86_400_000:g} "
        "(retention.ms): it will delete such messages; raise it, or give --new-timestamps"
    )
