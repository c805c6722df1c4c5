"""PyTorch's CPU build with a GPU that is not there, and zerorun's CUDA backend on the fake of CUDA.

A tensor "on the GPU" is one whose storage is marked: the fake takes its memory for the device's.
Two of PyTorch's modes keep the marks, and raise where one operation gets tensors of both devices,
as on a GPU. Kernels are the CPU's; the engine's own streams run beside them, and its memory comes
as DLPack of a CUDA device.
"""

import contextlib
import ctypes
import functools
import importlib
import os
import runpy
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from ranks import BUILD
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
CPU_TYPE, CUDA_TYPE = 1, 2  # of DLPack
LIBRARY = "libzerorun_cuda.so"


def make_package(folder: Path, streams: str = "exchange_api") -> dict[str, str]:
    """The built package with the fake in the place of its CUDA backend; a job's variables.

    `streams`: how PyTorch tells its current one, "exchange_api" or "function" (before 2.10).
    """
    package = folder / "python" / "zerorun"
    package.mkdir(parents=True)
    for entry in (BUILD / "python" / "zerorun").iterdir():
        if entry.name.startswith("_C."):
            shutil.copy(entry.resolve(), package)  # it looks for the backend beside itself
        else:
            (package / entry.name).symlink_to(entry)
    shutil.copy(BUILD / "fake_cuda" / LIBRARY, package)
    return {
        "PYTHONPATH": os.pathsep.join([str(package.parent), str(Path(__file__).parent)]),
        "LD_LIBRARY_PATH": str(BUILD / "fake_cuda" / "driver"),
        "ZERORUN_SHARE_GPUS": "1",
        "CASE_STEPS": "3",  # a fake GPU is slow
        "FAKE_TORCH_CUDA": streams,  # read by python_source.py
    }


# --- DLPack's structures ---


class DlDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DlDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )  # strides and an offset follow


INT, POINTER = ctypes.c_int, ctypes.POINTER
FROM_PYTHON = ctypes.PYFUNCTYPE(INT, ctypes.c_void_p, POINTER(DlTensor))
WORK_STREAM = ctypes.PYFUNCTYPE(INT, INT, ctypes.c_int32, POINTER(ctypes.c_void_p))


class ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("others", ctypes.c_void_p * 4),
        ("tensor_from_py_object", FROM_PYTHON),
        ("current_work_stream", WORK_STREAM),
    )


def pointer_in(capsule: object, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


def _capsule(api: ExchangeApi) -> object:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.addressof(api), b"dlpack_exchange_api", None)


def tensor_in(capsule: object) -> DlTensor:
    """The fields of a DLPack capsule that nobody has consumed."""
    return DlTensor.from_address(pointer_in(capsule, b"dltensor"))


# --- marks ---


@functools.cache
def fake_library() -> ctypes.CDLL:
    import zerorun

    library = ctypes.CDLL(str(Path(zerorun.__file__).parent / LIBRARY))
    library.fake_torch_stream.restype = ctypes.c_void_p
    library.fake_violation.restype = ctypes.c_char_p
    library.fake_bytes_held.restype = library.fake_take_peak.restype = ctypes.c_int64
    for function in (library.fake_calls_on, library.fake_is_on_gpu, library.fake_disown):
        function.argtypes = [ctypes.c_void_p]
    library.fake_adopt.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


class _Mark:
    """The mark of a storage, whose memory is the GPU's as long as this lives."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        library = fake_library()
        self.place = (storage.data_ptr(), storage.nbytes())
        self.of_pytorch = all(self.place) and not library.fake_is_on_gpu(self.place[0])
        self._disown = library.fake_disown
        if self.of_pytorch:
            library.fake_adopt(*self.place)

    def __del__(self) -> None:
        if self.of_pytorch:
            self._disown(self.place[0])


def mark_of(tensor: torch.Tensor) -> _Mark | None:
    return getattr(tensor.untyped_storage(), "fake_gpu", None)


def on_gpu(tensor: torch.Tensor) -> bool:
    return mark_of(tensor) is not None


def mark(value: Any, gpu: bool) -> Any:
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor):
            _mark_storage(tensor.untyped_storage(), gpu)
    return value


def _mark_storage(storage: torch.UntypedStorage, gpu: bool) -> None:
    before = getattr(storage, "fake_gpu", None)
    if gpu and before is not None and before.place == (storage.data_ptr(), storage.nbytes()):
        return
    del before
    storage.fake_gpu = None  # ends the one before
    if gpu:
        storage.fake_gpu = _Mark(storage)


class _Marks(TorchDispatchMode):
    """What is computed from a GPU's tensors is there too."""

    _across = ("aten::copy_", "aten::_to_copy", "aten::set_", "aten::_has_compatible_shallow")
    # A number may be on the host where others are on the GPU, but not in these: torch.cat's inputs
    # are on one device (pytorch/pytorch, pull request 35407).
    _joins = ("aten::cat", "aten::stack")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        there = [on_gpu(tensor) for tensor in given]
        result = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::copy_" or not any(there):
            return result
        takes_numbers = func._schema.name not in self._joins
        if not func._schema.name.startswith(self._across) and not all(
            gpu or (takes_numbers and tensor.dim() == 0)
            for tensor, gpu in zip(given, there, strict=True)
        ):
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device")
        return mark(result, True)


class _Devices(TorchFunctionMode):
    """What PyTorch does when it is given a device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.cpu, torch.Tensor.cuda):
            return _move(args[0], func is torch.Tensor.cuda, (), {})
        if func is torch.Tensor.to:
            return _to(*args, **kwargs)
        if kwargs.get("device") is None:
            return func(*args, **kwargs)
        gpu = torch.device(kwargs["device"]).type == "cuda"
        return mark(func(*args, **(kwargs | {"device": "cpu"})), gpu)


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if args and isinstance(args[0], torch.Tensor):
        return _move(tensor, on_gpu(args[0]), (args[0].dtype,), kwargs)
    if args and isinstance(args[0], str | torch.device | int):
        kwargs["device"], args = args[0], args[1:]
    elif args and args[0] is None:
        args = args[1:]
    device = kwargs.pop("device", None)
    gpu = on_gpu(tensor) if device is None else torch.device(device).type == "cuda"
    return _move(tensor, gpu, args, kwargs)


def _move(tensor: torch.Tensor, gpu: bool, args: Any, kwargs: Any) -> torch.Tensor:
    arguments = [arg for arg in args if isinstance(arg, torch.dtype)]
    if gpu == on_gpu(tensor):
        return tensor.to("cpu", *arguments, **kwargs)
    return mark(tensor.to("cpu", *arguments, **(kwargs | {"copy": True})), gpu)


# --- PyTorch with the GPU ---


def _flatten_weights(weights: list[torch.Tensor], *_: Any) -> None:
    """torch._cudnn_rnn_flatten_weight, which RNNs call on a GPU: a block of its own takes the place
    of the weights' memory (pytorch/pytorch, aten/src/ATen/native/cudnn/RNN.cpp,
    copy_weights_to_flat_buf_views)."""
    block = torch.cat([weight.flatten() for weight in weights])
    parts = block.split([weight.numel() for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.set_(part.view_as(weight))


class _Event:
    """An event of a stream that is never behind."""

    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self) -> None:
        self.time = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 1e3 * (end.time - self.time)


class FakeTorchCuda:
    """What the tests ask; there is one in a process, which stays to its end."""

    def __init__(self, streams: str) -> None:
        self.library = fake_library()
        self.library.fake_use_default_stream()
        self.calls_on = self.library.fake_calls_on  # calls of the engine that were given a stream
        self.bytes_held = self.library.fake_bytes_held  # of the fake runtime's pools
        self.take_peak = self.library.fake_take_peak  # with PyTorch's, since the last call
        self.set_delay = self.library.fake_set_delay  # in microseconds, of work on its streams
        self.current = 0  # the handle of CUDA's default stream, which is PyTorch's
        self._from_dlpack = torch.from_dlpack
        torch.from_dlpack = torch.utils.dlpack.from_dlpack = self._import
        self._patch_cuda()
        self._api = self._exchange_api()
        capsule = _capsule(self._api) if streams == "exchange_api" else None
        torch.Tensor.__dlpack_c_exchange_api__ = capsule
        self._modes = (_Marks(), _Devices())
        for mode in self._modes:
            mode.__enter__()

    def launches_of(self, kind: str) -> int:
        """Launches of the engine's kernels that take something of that type."""
        return self.library.fake_launches_of(kind.encode())

    def is_the_engines(self, tensor: torch.Tensor) -> bool:
        """True if its memory is from the fake runtime's pools."""
        found = mark_of(tensor)
        return found is not None and not found.of_pytorch

    def violation(self) -> str:
        """The first call that the real CUDA would punish."""
        return self.library.fake_violation().decode()

    @contextlib.contextmanager
    def other_stream(self) -> Iterator[int]:
        """As torch.cuda.stream(torch.cuda.Stream())."""
        before, self.current = self.current, self.library.fake_torch_stream()
        try:
            yield self.current
        finally:
            self.current = before

    def _patch_cuda(self) -> None:
        answers = {"is_available": True, "is_bf16_supported": True, "device_count": 1}
        answers |= {"current_device": 0, "synchronize": None, "empty_cache": None}
        answers["is_current_stream_capturing"] = False
        for name, answer in answers.items():
            setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        self.made_current = []  # devices, in the order of the calls
        torch.cuda.set_device = self.made_current.append
        stream = functools.partial(SimpleNamespace, synchronize=lambda: None)
        torch.cuda.current_stream = lambda *_: stream(cuda_stream=self.current)
        torch.backends.cudnn.is_acceptable = on_gpu
        torch.backends.cudnn.rnn.get_cudnn_mode = lambda _mode: 0
        torch._use_cudnn_rnn_flatten_weight = lambda: True
        torch._cudnn_rnn_flatten_weight = _flatten_weights
        torch.cuda.device_of = contextlib.nullcontext
        torch.cuda.Event = _Event
        torch.cuda.Stream = lambda: None
        torch.cuda.stream = lambda _stream: self.other_stream()
        self.recorded = set()  # storages that told PyTorch's allocator who uses them
        torch.Tensor.record_stream = lambda tensor, stream: self.recorded.add(
            (tensor.untyped_storage()._cdata, stream.cuda_stream)
        )
        resize = torch.UntypedStorage.resize_

        def resize_marked(storage: torch.UntypedStorage, nbytes: int) -> None:
            gpu = getattr(storage, "fake_gpu", None) is not None
            _mark_storage(storage, False)
            resize(storage, nbytes)
            _mark_storage(storage, gpu)

        torch.UntypedStorage.resize_ = resize_marked
        torch.Tensor.device = property(lambda tensor: GPU if on_gpu(tensor) else CPU)
        torch.Tensor.is_cuda = property(on_gpu)
        torch.Tensor.is_cpu = property(lambda tensor: not on_gpu(tensor))

    def _import(self, capsule: Any) -> torch.Tensor:
        """The real one refuses a CUDA device, so it gets the CPU's, which the memory is."""
        if type(capsule).__name__ != "PyCapsule":
            return self._from_dlpack(capsule)
        tensor = tensor_in(capsule)
        gpu = tensor.device.type == CUDA_TYPE
        assert tensor.device.id == 0
        if tensor.shape[0] > 0:
            assert gpu == bool(self.library.fake_is_on_gpu(tensor.data))
        tensor.device.type = CPU_TYPE
        return mark(self._from_dlpack(capsule), gpu)

    def _exchange_api(self) -> ExchangeApi:
        capsule = torch.Tensor.__dlpack_c_exchange_api__
        real = ExchangeApi.from_address(pointer_in(capsule, b"dlpack_exchange_api"))
        read = real.tensor_from_py_object

        def tensor_from_py_object(address: int, out: Any) -> int:
            status = read(address, out)
            if status == 0 and on_gpu(ctypes.cast(address, ctypes.py_object).value):
                out.contents.device.type = CUDA_TYPE
            return status

        def current_work_stream(kind: int, index: int, out: Any) -> int:
            assert (kind, index) == (CUDA_TYPE, 0)
            out[0] = self.current
            return 0

        functions = FROM_PYTHON(tensor_from_py_object), WORK_STREAM(current_work_stream)
        return ExchangeApi(real.version, real.others, *functions)


@functools.cache
def installed() -> FakeTorchCuda:
    """From the first call on this process has a GPU."""
    return FakeTorchCuda(os.environ["FAKE_TORCH_CUDA"])


if __name__ == "__main__":  # fake_torch_cuda.py SCRIPT ARGUMENT...
    sys.argv = sys.argv[1:]
    importlib.import_module("fake_torch_cuda").installed()
    runpy.run_path(sys.argv[0], run_name="__main__")
