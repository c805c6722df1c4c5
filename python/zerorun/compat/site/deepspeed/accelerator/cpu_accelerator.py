"""Ranks on the host."""

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator


class CPU_Accelerator(DeepSpeedAccelerator):  # noqa: N801 - DeepSpeed's name
    """The host's cores."""

    def get_rss(self) -> int:
        return self.memory_allocated()
