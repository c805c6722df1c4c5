"""RecordedClock: a clock whose answers a test can read."""

import time


class RecordedClock:
    """Stands for the module `time`, and keeps what it told."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.seen: list[float] = []

    def perf_counter(self) -> float:
        self.seen.append(time.perf_counter())
        return self.seen[-1]
