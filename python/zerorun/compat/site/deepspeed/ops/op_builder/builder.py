"""Replacements of the builders of operators: zerorun's kernels are compiled into it."""

from typing import Any


class OpBuilder:
    """An operator that needs no build; its kernel is reached through zerorun, not by itself."""

    NAME = ""  # DeepSpeed's for the operator
    BUILD_VAR = ""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.NAME or type(self).__name__

    def absolute_name(self) -> str:
        return f"deepspeed.ops.{self.name}"

    def is_compatible(self, verbose: bool = False) -> bool:
        """False: there is nothing to load."""
        return False

    def load(self, verbose: bool = True) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__}.load() is not part of zerorun: its kernels are compiled into "
            "it and run in deepspeed.initialize's optimizer and offloading; nothing is built at "
            "run time"
        )

    builder = jit_load = load


class CUDAOpBuilder(OpBuilder):
    """An operator of GPUs."""


class TorchCPUOpBuilder(CUDAOpBuilder):
    """An operator of CPUs."""
