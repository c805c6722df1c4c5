"""Ranks on GPUs."""

from typing import Any

import torch

from deepspeed.accelerator import DeepSpeedAccelerator

# Methods that are torch.cuda's functions of the same name.
_CUDA = (
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "empty_cache",
    "get_rng_state",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "stream",
    "synchronize",
)


class CUDA_Accelerator(DeepSpeedAccelerator):  # noqa: N801 - DeepSpeed's name
    """torch.cuda."""

    Stream = torch.cuda.Stream
    Event = torch.cuda.Event
    BFloat16Tensor = staticmethod(torch.cuda.BFloat16Tensor)
    ByteTensor = staticmethod(torch.cuda.ByteTensor)
    DoubleTensor = staticmethod(torch.cuda.DoubleTensor)
    FloatTensor = staticmethod(torch.cuda.FloatTensor)
    HalfTensor = staticmethod(torch.cuda.HalfTensor)
    IntTensor = staticmethod(torch.cuda.IntTensor)
    LongTensor = staticmethod(torch.cuda.LongTensor)
    _name = "cuda"
    _communication_backend_name = "nccl"

    def device_name(self, device_index: Any = None) -> str:
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def current_device_name(self) -> str:
        return self.device_name(torch.cuda.current_device())

    def is_synchronized_device(self) -> bool:
        return False

    use_host_timers = resolves_data_dependency = is_synchronized_device
    handles_memory_backpressure = is_synchronized_device

    def default_generator(self, device_index: int) -> torch.Generator:
        return torch.cuda.default_generators[device_index]

    def create_graph(self) -> Any:
        return torch.cuda.CUDAGraph()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> Any:
        return torch.cuda.graph(graph, pool, stream)

    def replay_graph(self, graph: Any) -> None:
        graph.replay()

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        torch.cuda.nvtx.range_push(msg)

    def range_pop(self, domain: Any = None) -> None:
        torch.cuda.nvtx.range_pop()

    def memory_cached(self, device_index: Any = None) -> int:
        return torch.cuda.memory_reserved(device_index)

    def max_memory_cached(self, device_index: Any = None) -> int:
        return torch.cuda.max_memory_reserved(device_index)

    def reset_max_memory_allocated(self, device_index: Any = None) -> None:
        torch.cuda.reset_peak_memory_stats(device_index)

    reset_max_memory_cached = reset_max_memory_allocated

    def total_memory(self, device_index: Any = None) -> int:
        return torch.cuda.mem_get_info(device_index)[1]

    def available_memory(self, device_index: Any = None) -> int:
        return torch.cuda.mem_get_info(device_index)[0]

    def pin_memory(self, tensor: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
        return tensor.pin_memory()

    def pin_empty(self, *size: Any, **options: Any) -> torch.Tensor:
        return torch.empty(*size, pin_memory=True, **options)

    def pin_empty_like(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.empty_like(tensor, device="cpu", pin_memory=True, **options)


for _function in _CUDA:
    setattr(CUDA_Accelerator, _function, staticmethod(getattr(torch.cuda, _function)))
