"""Ranks on the host."""

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator


class CPU_Accelerator(DeepSpeedAccelerator):  # noqa: N801 - DeepSpeed's name
    """The host's cores."""

    max_mem = 0  # the largest that get_rss has seen since reset_rss

    def get_rss(self) -> int:
        found = self.memory_allocated()
        self.max_mem = max(self.max_mem, found)
        return found

    def reset_rss(self) -> int:
        self.max_mem = 0
        return self.get_rss()
