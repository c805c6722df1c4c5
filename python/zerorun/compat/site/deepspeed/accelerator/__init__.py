"""deepspeed.accelerator: the device that this process's ranks use."""

import contextlib
import functools
import os
from typing import Any

import torch
from zerorun.device import local_device


class Accelerator:
    """The host, or CUDA where zerorun trains on it, with the methods that scripts call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: Any = torch.cuda if name == "cuda" else None

    def device_name(self, device_index: Any = None) -> str:
        if self._module is None or device_index is None:
            return self._name
        return f"{self._name}:{device_index}"

    def device(self, device_index: Any = None) -> torch.device:
        return torch.device(self.device_name(device_index))

    def current_device(self) -> int:
        return self._module.current_device() if self._module else 0

    def current_device_name(self) -> str:
        return self.device_name(self.current_device()) if self._module else self._name

    def set_device(self, device_index: int) -> None:
        if self._module:
            self._module.set_device(device_index)

    def device_count(self) -> int:
        if self._module:
            return self._module.device_count()
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def is_available(self) -> bool:
        return True

    def is_synchronized_device(self) -> bool:
        return self._module is None

    def communication_backend_name(self) -> str:
        return "nccl" if self._module else "gloo"

    def is_bf16_supported(self) -> bool:
        return self._module.is_bf16_supported() if self._module else True

    def is_fp16_supported(self) -> bool:
        return True

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def synchronize(self, device_index: Any = None) -> None:
        if self._module:
            self._module.synchronize(device_index)

    def empty_cache(self) -> None:
        if self._module:
            self._module.empty_cache()

    def stream(self, stream: Any) -> Any:
        return self._module.stream(stream) if self._module else contextlib.nullcontext()

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        return tensor.pin_memory() if self._module else tensor

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def _resident(self, key: str) -> int:
        with open("/proc/self/status", encoding="utf-8") as file:
            return int(next(line.split()[1] for line in file if line.startswith(key))) * 1024

    def memory_allocated(self, device_index: Any = None) -> int:
        if self._module:
            return self._module.memory_allocated(device_index)
        return self._resident("VmRSS")

    memory_reserved = memory_allocated

    def max_memory_allocated(self, device_index: Any = None) -> int:
        if self._module:
            return self._module.max_memory_allocated(device_index)
        return self._resident("VmHWM")

    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: Any = None) -> None:
        if self._module:
            self._module.reset_peak_memory_stats(device_index)

    def total_memory(self, device_index: Any = None) -> int:
        if self._module:
            return self._module.get_device_properties(device_index).total_memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def range_push(self, message: str) -> None:
        """No profiler ranges."""

    def range_pop(self) -> None:
        """No profiler ranges."""


@functools.cache
def get_accelerator() -> Accelerator:
    return Accelerator(local_device().type)
