"""Parameters that are empty on this rank unless somebody holds them: full values on demand."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from zerorun import _C, torch_seam
from zerorun.config import value_of
from zerorun.host_memory import moved
from zerorun.model.tensors import is_distributed, like, local_of, place
from zerorun.model.uncopied import Uncopied
from zerorun.program_warning import warn

_ids = itertools.count()
_ATTRIBUTE = "_zerorun_partition"


class _Method(Uncopied):
    """A function as an attribute of a parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def partition_of(parameter: Any) -> "Partition | None":
    """The partition that manages a parameter, if one does."""
    return getattr(parameter, _ATTRIBUTE, None)


def edits_are_refused(parsed: _C.ParsedConfig) -> bool:
    """What a configuration says of changes within GatheredParameters that would be lost."""
    return bool(value_of(parsed, "/zero_optimization/enable_sanity_checks", False))


@functools.cache
def _serve_moving_averages() -> None:
    """From the first call on, torch's AveragedModel raises ConfigError for an update from or of
    sharded parameters: both may be empty, and nothing else would tell."""
    update = AveragedModel.update_parameters

    @functools.wraps(update)
    def update_parameters(average: Any, model: Any) -> None:
        parameters = itertools.chain(model.named_parameters(), average.module.named_parameters())
        for name, parameter in parameters:
            if _is_empty(parameter):
                raise _C.ConfigError(
                    f"AveragedModel: parameter {name} is empty, since it is sharded at stage 3: "
                    "make and update the average within "
                    "zerorun.zero.GatheredParameters(model.parameters())"
                )
        update(average, model)

    torch_seam.replace(AveragedModel, "update_parameters", update_parameters)


def _is_empty(parameter: Any) -> bool:
    """True for a sharded parameter that nobody has gathered."""
    partition = partition_of(parameter)
    return partition is not None and not partition.available


@contextlib.contextmanager
def gathered(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Full values, to be read only, of those that are partitioned. Collective for these."""
    with contextlib.ExitStack() as stack:
        for partition in map(partition_of, parameters):
            if partition is not None:
                partition.acquire()
                stack.callback(partition.release)
        yield


@contextlib.contextmanager
def shapes_without_values(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Parameters that are empty have their shapes, and zeros of no memory, for code that groups
    them by dimensions."""
    empty = [(p, p.data) for p in parameters if _is_empty(p) and not is_distributed(p)]
    for parameter, before in empty:
        partition = partition_of(parameter)
        assert partition is not None
        parameter.data = before.new_zeros(()).expand(partition.shape)
    try:
        yield
    finally:
        for parameter, before in empty:
            parameter.data = before


@contextlib.contextmanager
def together(partitions: Iterable["Partition"]) -> Iterator[None]:
    """Lets every rank copy full values between the same writes to ``ds_tensor``. Collective.

    Ranks of one host read each other's parts in place, and no gather holds back a writer.
    """
    first = next((partition for partition in partitions if partition.is_read_in_place), None)
    if first is not None:
        first.communicator.barrier("before full parameters are read")
    yield
    if first is not None:
        first.communicator.barrier("full parameters were read")


class OwnPart(torch.Tensor):
    """``ds_tensor``: this rank's elements in the memory where they are kept, whose ``data`` can be
    written but not replaced."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @property
    def data(self) -> torch.Tensor:
        return self.detach().as_subclass(torch.Tensor)

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        if values.shape != self.shape:
            raise _C.ConfigError(
                f"ds_tensor.data: got shape {tuple(values.shape)}, expected {tuple(self.shape)}: "
                "the memory of a partitioned parameter cannot be replaced, only written"
            )
        with torch.no_grad():
            self.copy_(values)


class Partition(Uncopied):
    """Makes one parameter full and empty again, and gives it the ``ds_*`` attributes."""

    in_engine = False  # whether an engine's hooks gather the parameter
    refuses_edits = False  # whether changes that would end with a gather are an error
    home: Any = None  # with drop_copies(), which forgets changes in memory that came alone
    gathered_version: int | None = (
        None  # PyTorch's count of changes after a gather of the program's
    )

    communicator: _C.Communicator  # of the ranks that have the parameter

    def __init__(self, parameter: nn.Parameter, shape: torch.Size) -> None:
        self.parameter: Any = parameter
        self._before: list[torch.Tensor] = []  # the data before each gather of the program's
        self.shape = shape
        self.numel = shape.numel()
        setattr(parameter, _ATTRIBUTE, self)
        _serve_moving_averages()
        for name, value in self._attributes().items():
            setattr(parameter, name, value)
        if "ds_id" not in vars(parameter):  # it stays for life
            vars(parameter)["ds_id"] = next(_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.available:
            warn(
                f"a pickle (torch.save) has an empty parameter of shape {tuple(self.shape)}, which "
                "is sharded at stage 3: pickle the model within "
                "zerorun.zero.GatheredParameters(model.parameters()), or use save_checkpoint"
            )
        return super().__reduce__()

    def _attributes(self) -> dict[str, Any]:
        return {
            "ds_shape": self.shape,
            "ds_numel": self.numel,
            "ds_persist": False,
            "ds_active_sub_modules": set(),
            "ds_process_group": None,
            "ds_tensor": None,
            "partition_numel": _Method(self.local_numel),
            "all_gather": _Method(self._gather),
            "partition": _Method(self._partition),
            "__deepcopy__": _Method(self._deepcopy),
        }

    def _gather(self, param_list: Iterable[nn.Parameter] | None = None, *_: Any, **__: Any) -> None:
        """DeepSpeed's all_gather: makes this parameter full, or those listed. Collective.

        What a rank changes is its own, since ranks may share what they read.
        """
        listed = self._listed(param_list)
        with together(listed):
            for each in listed:
                each.acquire()
                each._before.append(local_of(each.parameter))
                place(each.parameter, each._before[-1].clone())

    def _partition(
        self,
        param_list: Iterable[nn.Parameter] | None = None,
        hierarchy: int = 0,
        has_been_updated: bool = False,
        free_data: bool = True,
    ) -> None:
        """DeepSpeed's partition: ends all_gather. With `has_been_updated` changes, which are the
        same on every rank, stay. Collective."""
        for each in self._listed(param_list):
            if not each._before:
                continue
            if has_been_updated:
                each.keep_changes(each._before[-1])
            place(each.parameter, each._before.pop())
            each.end_gather()

    def end_gather(self) -> None:
        """Ends a gather of the program's, who knows what becomes of changes in it."""
        if not self.parameter.is_inference():
            self.gathered_version = self.parameter._version
        self.release()

    def _listed(self, parameters: Iterable[nn.Parameter] | None) -> list["Partition"]:
        given = [self.parameter] if parameters is None else parameters
        found = (partition_of(parameter) for parameter in given)
        return [partition for partition in found if partition is not None]

    def keep_changes(self, before: torch.Tensor, root: int | None = None) -> None:
        """Takes over what ``parameter.data`` has become since it was `before`. Collective.

        `root`: the rank whose values all ranks take; None: they are the same on every rank.
        """
        values = local_of(self.parameter)
        if values.shape != self.shape:
            raise _C.ConfigError(
                f"a gathered parameter of shape {tuple(self.shape)} has become "
                f"{tuple(values.shape)}; its shape cannot change"
            )
        flat = values.contiguous().flatten()
        if root is not None:
            self.broadcast(flat, root)
        self.store(flat)
        moved(flat.nbytes)
        if not self.is_stored_in(before):
            before.copy_(flat.view(self.shape))  # whoever gathered it before sees the change

    def detach(self) -> None:
        """Makes the parameter an ordinary one."""
        for name in (_ATTRIBUTE, *self._attributes()):
            if hasattr(self.parameter, name):
                delattr(self.parameter, name)

    @property
    def rank(self) -> int:
        """This rank's number among those that have the parameter."""
        return self.communicator.rank

    @property
    def available(self) -> bool:
        """True while the parameter is full on this rank."""
        raise NotImplementedError

    @property
    def is_held(self) -> bool:
        """True while a call of a module, or a gather of the program's, holds the parameter full."""
        return self.available

    @property
    def comes_alone(self) -> bool:
        """True if an acquire makes memory that nobody else reads and that goes with the release."""
        return not self.available

    @property
    def is_read_in_place(self) -> bool:
        """True if other ranks may read this one's part where it is kept."""
        return False

    def is_stored_in(self, data: torch.Tensor) -> bool:
        """True if `data` shows what store() takes."""
        return False

    def local_numel(self) -> int:
        """Elements that this rank keeps."""
        raise NotImplementedError

    def acquire(self) -> None:
        """Makes ``parameter.data`` full; nested calls count."""
        raise NotImplementedError

    def release(self) -> None:
        """Ends one acquire."""
        raise NotImplementedError

    def store(self, values: torch.Tensor) -> None:
        """Takes new full values, the same on every rank."""
        raise NotImplementedError

    def broadcast(self, values: torch.Tensor, root: int) -> None:
        """Overwrites `values` with the root's. Collective."""
        raise NotImplementedError

    def watch(self, module: nn.Module) -> None:
        """Tells the engine, if there is one, that the module's forward may use the parameter."""

    def gather_full(self) -> torch.Tensor:
        """A copy of the full values, in shape. Collective."""
        self.acquire()
        try:
            return local_of(self.parameter).clone()
        finally:
            self.release()

    def _deepcopy(self, memo: dict[int, Any]) -> nn.Parameter:
        """``__deepcopy__`` of the parameter, which is empty most of the time."""
        made = memo[id(self.parameter)] = self.copy(memo)
        return made

    def copy(self, memo: dict[int, Any]) -> nn.Parameter:
        """A parameter with the same values: an ordinary one. Collective unless this one is full."""
        parameter = self.parameter
        if type(parameter).__deepcopy__ is not nn.Parameter.__deepcopy__:
            return self._copy_by_class(memo)
        values = local_of(parameter).clone() if self.available else self.gather_full()
        if is_distributed(parameter):
            return nn.Parameter(like(parameter, values), parameter.requires_grad)
        return type(parameter)(values, parameter.requires_grad)

    def _copy_by_class(self, memo: dict[int, Any]) -> nn.Parameter:
        """As copy(), for a class that copies its attributes itself (bitsandbytes' quant_state)."""
        self.acquire()
        try:
            made: nn.Parameter = type(self.parameter).__deepcopy__(self.parameter, memo)
        finally:
            self.release()
        for name in [name for name, value in vars(made).items() if isinstance(value, Uncopied)]:
            delattr(made, name)
        for name in self._attributes():
            vars(made).pop(name, None)
        return made
