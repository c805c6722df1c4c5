"""The accelerator in use: CUDA where zerorun trains on it, else the host."""

from typing import Any

from zerorun.device import local_device

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

_current: DeepSpeedAccelerator | None = None


def get_accelerator() -> DeepSpeedAccelerator:
    global _current  # noqa: PLW0603 - DeepSpeed's interface is global
    if _current is None:
        if local_device().type == "cuda":
            from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

            _current = CUDA_Accelerator()
        else:
            from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

            _current = CPU_Accelerator()
    return _current


def set_accelerator(accel_obj: Any) -> None:
    """Makes get_accelerator return another one; zerorun itself asks PyTorch."""
    global _current  # noqa: PLW0603 - DeepSpeed's interface is global
    _current = accel_obj


def is_current_accelerator_supported() -> bool:
    return get_accelerator().device_name() in {"cpu", "cuda"}
