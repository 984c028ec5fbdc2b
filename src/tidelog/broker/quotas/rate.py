"""A rate over a sliding window, as Kafka's quotas measure it.

Kept are samples of ``window_ms``, at most ``samples_max`` and the one that has just begun. A sample begins with the first value
that comes after the last one is over, so a client that rests leaves a gap and not empty samples; one whose last value is older
than the whole window counts no more. The time that a total is divided by reaches from the oldest sample until now, and at
least over all samples but one: a client that has just begun is not held to what it did in its first millisecond.

A rate of which all samples are too old is as good as a new one. So forgetting it loses nothing.
"""

# Milliseconds in a second: rates are per second.
_SECOND_MS = 1_000


class Rate:
    __slots__ = ("_last_ms", "_samples", "_samples_max", "_window_ms")

    def __init__(self, window_ms: int, samples_max: int) -> None:
        self._window_ms = window_ms
        self._samples_max = samples_max
        # [began, last value came, total] of each, oldest first.
        self._samples: list[list[float]] = []
        self._last_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        self._last_ms = now_ms
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._window_ms:
            newest = samples[-1]
            newest[1] = now_ms
            newest[2] += value
            return
        samples.append([now_ms, now_ms, value])
        if len(samples) > self._samples_max + 1:
            del samples[0]

    def total(self, now_ms: int) -> float:
        """Of all that still counts."""
        self._forget(now_ms)
        return sum([sample[2] for sample in self._samples])

    def per_second(self, now_ms: int) -> float:
        return self.total(now_ms) * _SECOND_MS / self._elapsed_ms(now_ms)

    def throttle_ms(self, bound: float, now_ms: int) -> float:
        """After how long of silence the rate would be within ``bound``; 0 when it is."""
        rate = self.per_second(now_ms)
        return (rate - bound) / bound * self._elapsed_ms(now_ms) if rate > bound else 0.0

    def is_over(self, now_ms: int) -> bool:
        """All of it is too old to count."""
        return now_ms - self._last_ms >= self._window_ms * self._samples_max

    def _forget(self, now_ms: int) -> None:
        age_max = self._window_ms * self._samples_max
        samples = self._samples
        while samples and now_ms - samples[0][1] >= age_max:
            del samples[0]

    def _elapsed_ms(self, now_ms: int) -> float:
        samples = self._samples
        elapsed_ms = now_ms - samples[0][0] if samples else 0
        windows_missing = self._samples_max - 1 - elapsed_ms // self._window_ms
        if windows_missing > 0:
            elapsed_ms += windows_missing * self._window_ms
        # With one sample, at its very beginning.
        return max(elapsed_ms, 1)
