"""The device that this process's ranks use, with the methods that scripts call."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
from zerorun.device import local_device
from zerorun.process_state import STATE


def _kilobytes(path: str, key: str) -> int:
    """What a line of a file of /proc says, in bytes."""
    with open(path, encoding="utf-8") as file:
        return int(next(line.split()[1] for line in file if line.startswith(key))) * 1024


def _numa_nodes() -> int:
    try:
        names = os.listdir("/sys/devices/system/node")
    except OSError:
        return 1
    return max(1, sum(name.startswith("node") and name[4:].isdigit() for name in names))


def _answer(value: Any) -> Callable[..., Any]:
    """A method that returns the same whatever it is asked, or has nothing to do (None)."""
    return lambda self, *_args, **_options: value


class DeepSpeedAccelerator:
    """Answers that are the same on every device, and the host's."""

    BFloat16Tensor = staticmethod(torch.BFloat16Tensor)
    ByteTensor = staticmethod(torch.ByteTensor)
    DoubleTensor = staticmethod(torch.DoubleTensor)
    FloatTensor = staticmethod(torch.FloatTensor)
    HalfTensor = staticmethod(torch.HalfTensor)
    IntTensor = staticmethod(torch.IntTensor)
    LongTensor = staticmethod(torch.LongTensor)
    Stream: Any = None
    Event: Any = None
    _name = "cpu"
    _communication_backend_name = "gloo"
    _compile_backend = "inductor"

    # --- devices ---

    is_available = _answer(True)
    is_synchronized_device = use_host_timers = resolves_data_dependency = _answer(True)
    handles_memory_backpressure = is_synchronized_device
    current_device = _answer(0)
    set_device = _answer(None)  # there is one host

    def device_name(self, device_index: Any = None) -> str:
        return self._name

    def device(self, device_index: Any = None) -> torch.device:
        return torch.device(self.device_name(device_index))

    def current_device_name(self) -> str:
        return self._name

    def device_count(self) -> int:
        """Ranks of this host (LOCAL_SIZE), without a launcher its NUMA nodes."""
        started = os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or "0"
        return int(started) or _numa_nodes()

    def communication_backend_name(self) -> str:
        return self._communication_backend_name

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def set_visible_devices_envs(
        self, current_env: dict[str, str], local_accelerator_ids: list[int]
    ) -> None:
        for name in self.visible_devices_envs():
            current_env[name] = ",".join(map(str, local_accelerator_ids))

    def export_envs(self) -> list[str]:
        return []

    # --- dtypes ---

    is_bf16_supported = is_fp16_supported = is_fp64_supported = _answer(True)
    is_triton_supported = prefer_triton_grouped_mm = supports_nvtx_domain = _answer(False)

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float, torch.half, torch.bfloat16]

    # --- random numbers ---

    random = _answer(torch.random)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    initial_seed = staticmethod(torch.initial_seed)

    def default_generator(self, device_index: Any) -> torch.Generator:
        return torch.default_generator

    def get_rng_state(self, device_index: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: Any = None) -> None:
        torch.set_rng_state(new_state)

    # --- streams and graphs ---

    synchronize = _answer(None)  # the host runs in order
    current_stream = default_stream = create_graph = _answer(None)
    stream = capture_to_graph = _answer(contextlib.nullcontext())
    replay_graph = _answer(None)  # a graph of the host's is what ran
    is_current_stream_capturing = _answer(False)
    range_push = range_pop = _answer(None)  # no profiler ranges

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        return callback()

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        if backend not in torch._dynamo.list_backends(exclude_tags=()):
            raise ValueError(f"set_compile_backend: torch.compile has no backend {backend!r}")
        self._compile_backend = backend

    # --- memory ---

    empty_cache = _answer(None)  # nothing is cached
    reset_peak_memory_stats = reset_max_memory_allocated = _answer(None)  # the process's peak stays
    reset_max_memory_cached = reset_peak_memory_stats

    def memory_allocated(self, device_index: Any = None) -> int:
        return _kilobytes("/proc/self/status", "VmRSS")

    memory_reserved = memory_cached = memory_allocated

    def max_memory_allocated(self, device_index: Any = None) -> int:
        return _kilobytes("/proc/self/status", "VmHWM")

    max_memory_reserved = max_memory_cached = max_memory_allocated

    def memory_stats(self, device_index: Any = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.memory_allocated(),
            "allocated_bytes.all.peak": self.max_memory_allocated(),
        }

    def total_memory(self, device_index: Any = None) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def available_memory(self, device_index: Any = None) -> int:
        return _kilobytes("/proc/meminfo", "MemAvailable")

    def pin_memory(self, tensor: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
        return tensor

    unpin_memory = pin_memory

    def pin_empty(self, *size: Any, **options: Any) -> torch.Tensor:
        return torch.empty(*size, **options)

    def pin_empty_like(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.empty_like(tensor, device="cpu", **options)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    # --- operators ---

    def op_builder_dir(self) -> str:
        return "deepspeed.ops.op_builder"

    def get_op_builder(self, class_name: str) -> Any:
        from deepspeed.ops import op_builder

        return getattr(op_builder, class_name)

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()


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


_current: DeepSpeedAccelerator | None = None


def get_accelerator() -> DeepSpeedAccelerator:
    global _current  # noqa: PLW0603 - DeepSpeed's interface is global
    if _current is None:
        _current = CUDA_Accelerator() if local_device().type == "cuda" else CPU_Accelerator()
    return _current


def set_accelerator(accel_obj: Any) -> None:
    """Makes get_accelerator return another one; zerorun itself asks PyTorch."""
    global _current  # noqa: PLW0603 - DeepSpeed's interface is global
    _current = accel_obj


STATE.others[__name__] = lambda: set_accelerator(None)


def is_current_accelerator_supported() -> bool:
    return get_accelerator().device_name() in {"cpu", "cuda"}


# --- ranks on GPUs ---


class CUDA_Accelerator(DeepSpeedAccelerator):  # noqa: N801 - DeepSpeed's name
    """torch.cuda."""

    Stream = torch.cuda.Stream
    Event = torch.cuda.Event
    _name = "cuda"
    _communication_backend_name = "nccl"

    def device_name(self, device_index: Any = None) -> str:
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def current_device_name(self) -> str:
        return self.device_name(torch.cuda.current_device())

    is_synchronized_device = use_host_timers = resolves_data_dependency = _answer(False)
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

    memory_cached = staticmethod(torch.cuda.memory_reserved)
    max_memory_cached = staticmethod(torch.cuda.max_memory_reserved)
    reset_max_memory_allocated = staticmethod(torch.cuda.reset_peak_memory_stats)
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


# All else for which torch.cuda has a function of the same name is that function.
for _name in vars(DeepSpeedAccelerator).keys() - vars(CUDA_Accelerator).keys() - {"device"}:
    if callable(getattr(torch.cuda, _name, None)):
        setattr(CUDA_Accelerator, _name, staticmethod(getattr(torch.cuda, _name)))
