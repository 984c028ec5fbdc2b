from tests.server.harness import wait_until
from tidelog.ports.executor import Completion
from tidelog.ports.real_executor import ThreadExecutor
from tidelog.server.tracked_executor import TrackedExecutor


def test_work_is_outstanding_until_its_completion_is_delivered() -> None:
    threads = ThreadExecutor()
    tracked = TrackedExecutor(threads)
    seen: list[tuple[object, int]] = []

    def done(completion: Completion) -> None:
        seen.append((completion.result or str(completion.error), tracked.outstanding))

    tracked.submit(lambda: "result", done)
    tracked.submit(lambda: 1 // 0, done)
    assert tracked.outstanding == 2
    wait_until(lambda: threads.run_completions(0.1) >= 0 and len(seen) == 2)
    assert tracked.outstanding == 0
    assert sorted(str(result) for result, _ in seen) == ["integer division or modulo by zero", "result"]
    # Counted off before the owner hears of it, so that it may look.
    assert sorted(outstanding for _, outstanding in seen) == [0, 1]
    threads.close(wait=True)
