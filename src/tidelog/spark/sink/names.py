"""Names in the cluster: of jobs, of their transactions, and of the ledger.

A job is a streaming query (its id, which survives restarts) or a batch write (its ``writeId``). A task writes under

    <prefix>-<job>-<generation, modulo GENERATION_SLOTS>-<partition>-<attempt>

Every batch uses the same names again, because a broker remembers each for days; so it has no more of them than tasks that may run
at a time. The generation counts the runs of a job: a task that an earlier run left behind cannot take over, and so abort, the
transaction of a task of this run.
"""

import re

# A forgotten task would have to outlive this many restarts to meet its own name again, and then the commit notices.
GENERATION_SLOTS = 16
# No task is tried as often within one attempt of its stage: spark.task.maxFailures is 4, and speculation adds to it.
ATTEMPTS_PER_STAGE = 1000
_WRITE = "write-"
_ONCE = "write-once-"


def query_job(query_id: str) -> str:
    return query_id


def write_job(write_id: str) -> str:
    return _WRITE + write_id


def is_write(job: str) -> bool:
    return job.startswith(_WRITE)


def is_once(job: str) -> bool:
    """Whether this is a write without a ``writeId``, which nobody resumes."""
    return job.startswith(_ONCE)


def once_write_id(token: str) -> str:
    return _ONCE.removeprefix(_WRITE) + token


def shown(job: str) -> str:
    return f"the write {job.removeprefix(_WRITE)}" if is_write(job) else f"query {job}"


def ledger_topic(prefix: str) -> str:
    return f"{prefix}-ledger"


def ledger_transactional_id(prefix: str, job: str) -> str:
    return f"{prefix}-{job}-ledger"


def slot_of(generation: int) -> int:
    return generation % GENERATION_SLOTS


def transactional_id(prefix: str, job: str, generation: int, partition: int, attempt: int) -> str:
    return f"{prefix}-{job}-{slot_of(generation)}-{partition}-{attempt}"


def slot_in(prefix: str, job: str, name: str) -> int | None:
    """The slot in a task's transactional id; None if the id is of another job. (Job ``x`` does not claim ids of job ``x-1``.)"""
    found = re.fullmatch(rf"{re.escape(f'{prefix}-{job}')}-(\d+)-\d+-\d+", name)
    return None if found is None else int(found[1])
