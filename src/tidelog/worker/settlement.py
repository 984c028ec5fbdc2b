"""What becomes of messages that were tried: offsets finished, letters written, lanes freed, breakers told.

Runs in the polling thread only. A failure is, in this order: ignored when its partition was taken away; put back when the circuit
breaker is open; a letter to the next retry level, behind which the waiting messages of its key follow (``order="key"``); or a
dead letter. Its offset is finished when the outbox says that the letter is safe.
"""

import logging
from collections import deque
from collections.abc import Sequence

from tidelog.deadletters.letter import Letter
from tidelog.deadletters.topics import dead_letter_topic, retry_topic
from tidelog.ports.clock import Clock
from tidelog.ports.randomness import Randomness
from tidelog.worker.assigned import MESSAGE_BYTES, Assigned, Home
from tidelog.worker.attempt import Failure
from tidelog.worker.blocked_keys import Place
from tidelog.worker.breaker import State
from tidelog.worker.execution import Report
from tidelog.worker.failures import Dead, Decision, FailurePolicy, InProgress, Retry
from tidelog.worker.job import Job
from tidelog.worker.letters import failed_letter, waiting_letter
from tidelog.worker.metrics import Counts
from tidelog.worker.options import Options
from tidelog.worker.outbox import Outbox
from tidelog.worker.pauses import Pauses

log = logging.getLogger("tidelog.worker")


class Settlement:
    outbox: Outbox

    def __init__(
        self,
        options: Options,
        policy: FailurePolicy,
        counts: Counts,
        reports: deque[Report],
        pauses: Pauses,
        *,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._options = options
        self._policy = policy
        self._counts = counts
        self._reports = reports
        self._clock = clock
        self._randomness = randomness
        self._pauses = pauses
        self._keeps_key_order = options.order == "key"

    def settle(self) -> None:
        """All that was reported until now. Raises what a handler raised to end the program."""
        reports = self._reports
        while reports:
            report = reports.popleft()
            self._handled(report)
            for failure in report.failures:
                self._failed(failure, report)
            if report.fatal is not None:
                raise report.fatal

    def finish(self, assigned: Assigned, jobs: Sequence[Job]) -> None:
        """These are done with, one way or the other."""
        assigned.offsets.finish([job.offset for job in jobs])
        assigned.backlog -= len(jobs)
        assigned.backlog_bytes -= sum([len(job.view[2]) for job in jobs]) + MESSAGE_BYTES * len(jobs)

    def finish_one(self, job: Job) -> None:
        if not job.assigned.is_closed:
            self.finish(job.assigned, (job,))

    def hold(self, job: Job, place: Place) -> None:
        """An earlier message of its key waits there: this one waits in memory, or is written behind it."""
        key, assigned = job.view.key, job.assigned
        assert key is not None, "a message without a key waits for nothing"
        home = assigned.home
        if home.blocked.has(key, job.origin) or home.parking.has(key, job.origin):
            # Another copy of it, from a run that died: one is enough.
            self._counts.skipped += 1
            self.finish(assigned, (job,))
        elif self._pauses.may_park(assigned):
            assigned.parked += 1
            assigned.parked_bytes += len(job.view[2]) + MESSAGE_BYTES
            self._counts.waited += 1
            home.parking.add(key, job)
        else:
            self._wait_behind(job, key, place)

    def release(self, home: Home, key: bytes) -> list[Job]:
        """Those in memory that need not wait any more, in order."""
        jobs = home.parking.take(key, home.blocked.lowest(key))
        for job in jobs:
            job.assigned.parked -= 1
            job.assigned.parked_bytes -= len(job.view[2]) + MESSAGE_BYTES
        return jobs

    def _wait_behind(self, job: Job, key: bytes, place: Place) -> None:
        job.assigned.home.blocked.add(key, job.origin, place)
        letter = waiting_letter(job, place.level, place.due_ms, group=self._options.group, now_ms=self._clock.now_ms())
        self._counts.waited += 1
        self._send(job, retry_topic(job.assigned.home.source, self._options.group, place.level), letter)

    # -- reports -------------------------------------------------------------------------------------------------------------

    def _handled(self, report: Report) -> None:
        jobs = report.handled
        if not jobs:
            return
        self._counts.handled += len(jobs) - report.duplicates
        self._counts.duplicates += report.duplicates
        begin = 0
        for end in range(1, len(jobs) + 1):
            if end < len(jobs) and jobs[end].assigned is jobs[begin].assigned:
                continue
            assigned = jobs[begin].assigned
            if not assigned.is_closed:
                self.finish(assigned, jobs[begin:end])
            begin = end
        breaker = jobs[0].assigned.route.breaker
        if breaker is not None:
            was_probing = breaker.state is State.PROBING
            breaker.succeeded(len(jobs), self._clock.monotonic_ms())
            if was_probing:
                log.warning("%s: the circuit breaker is closed: a probe was handled", jobs[0].assigned.route.name)
                report.execution.resume()

    def _failed(self, failure: Failure, report: Report) -> None:
        job = failure.job
        if job.assigned.is_closed:
            self._free_lane(job, report, None)
            return
        if self._goes_back(failure, report):
            return
        self._counts.failed += 1
        decision = self._decide(failure)
        now_ms = self._clock.now_ms()
        retry = decision if isinstance(decision, Retry) else None
        letter = failed_letter(
            failure, retry, group=self._options.group, application_version=self._options.application_version, now_ms=now_ms
        )
        home = job.assigned.home
        if isinstance(decision, Dead):
            self._counts.dead += 1
            log.error(
                "%s[%d]@%d is a dead letter after %d attempts: %s: %s",
                *(
                    letter.topic,
                    letter.partition,
                    letter.offset,
                    letter.attempts,
                    letter.exception_class,
                    letter.exception_message,
                ),
            )
            topic = dead_letter_topic(home.source, self._options.group)
        else:
            self._counts.retried += 1
            topic = retry_topic(home.source, self._options.group, decision.level)
            if self._keeps_key_order and job.view.key is not None:
                home.blocked.add(job.view.key, job.origin, Place(decision.level, decision.due_ms))
        self._send(job, topic, letter)
        self._free_lane(job, report, retry)

    def _goes_back(self, failure: Failure, report: Report) -> bool:
        """Whether the circuit breaker is open, so that the failure does not count."""
        job = failure.job
        breaker = job.assigned.route.breaker
        if breaker is None or isinstance(failure.error, InProgress):
            # The handler was not even tried.
            return False
        now_ms = self._clock.monotonic_ms()
        was_closed = breaker.state is State.CLOSED
        if job.attempts and was_closed:
            # One that failed before says more about itself than about what it depends on.
            return False
        if not breaker.counts(failure.error, failure.is_retriable):
            breaker.failed_otherwise(now_ms)
            if not was_closed and breaker.state is State.CLOSED:
                report.execution.resume()
            return False
        goes_back = breaker.failed(now_ms)
        if breaker.state is State.OPEN:
            report.execution.halt()
            if was_closed:
                log.warning("%s: the circuit breaker is open: %s", job.assigned.route.name, failure.story.exception_message)
        if goes_back:
            self._counts.put_back += 1
            if job.assigned.is_stopping:
                self._free_lane(job, report, None)
            else:
                report.execution.put_back(job)
        return goes_back

    def _decide(self, failure: Failure) -> Decision:
        job, now_ms, fraction = failure.job, self._clock.now_ms(), self._randomness.fraction()
        if isinstance(failure.error, InProgress):
            return self._policy.look_again(job.attempts, now_ms, fraction)
        return self._policy.decide(job.attempts + failure.tries, failure.is_retriable, now_ms, fraction)

    def _free_lane(self, job: Job, report: Report, retry: Retry | None) -> None:
        """The lane was held for this failure. What waits in it goes on, or behind the letter."""
        if not self._keeps_key_order:
            return
        waiting = [each for each in report.execution.drain(job.lane) if not each.assigned.is_stopping]
        going_on = waiting
        if retry is not None and job.view.key is not None:
            going_on = []
            for each in waiting:
                place = each.assigned.home.blocked.blocker(job.view.key, each.origin)
                if place is None:
                    going_on.append(each)
                else:
                    self.hold(each, place)
        if going_on:
            with report.execution.adding() as dispatch:
                for each in going_on:
                    each.lane = dispatch.lane_of(job.lane.key) if job.lane.key is not None else each.lane
                dispatch.add(going_on)

    def _send(self, job: Job, topic: str, letter: Letter) -> None:
        self.outbox.send(topic, job.assigned.partition, letter, job)
