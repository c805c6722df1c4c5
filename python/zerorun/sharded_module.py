"""A model whose states are sharded: everything of an engine that is not its training loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zerorun import _C
from zerorun.agreement import all_or_none
from zerorun.checkpoints import torch_state_dicts
from zerorun.hooks.module_call import cast_in
from zerorun.hooks.parameter_memory import masters_from_parameters
from zerorun.model.tensors import local_of, whole_of
from zerorun.optimizers import other_optimizers
from zerorun.optimizers.optimizer import ZeroOptimizer
from zerorun.program_warning import warn
from zerorun.shards import clipping
from zerorun.shards.parameters import EMPTY_PARAMETERS
from zerorun.shards.shards import Policy, Shards

if TYPE_CHECKING:  # what a training without saves does without
    from zerorun.checkpoints.checkpoint import Training, Wanted
    from zerorun.checkpoints.streaming import ParameterStream

_INNER = {  # by the name until 0.3: where it is now
    "collector": "_shards.collector",
    "core": "_core",
    "finish_reduction": "_shards.finish_reduction",
    "layout": "_layout",
    "policy": "_shards.policy",
    "ranks": "_ranks",
    "saves_model_only": "_saves_model_only",
    "settings": "_shards.settings",
}


def _load_whole(
    training: Training, load_dir: str | os.PathLike[str], tag: str | None, wanted: Wanted
) -> tuple[str | None, dict[str, Any] | None]:
    """Loads a checkpoint of zerorun or of another program. Collective."""
    from zerorun.checkpoints import checkpoint, foreign_checkpoint, model_parts

    tag, shards = checkpoint.shared_tag(training, load_dir, tag), training._shards
    with all_or_none(shards.communicator, "load_checkpoint"):
        model_parts.check_whole(load_dir, tag)
    if shards.ranks.experts:
        return checkpoint.load(training, load_dir, tag, wanted)
    found = foreign_checkpoint.load(training, load_dir, tag, wanted)
    return found or checkpoint.load(training, load_dir, tag, wanted)


class ShardedModule(nn.Module):
    """The part of an engine that is not its training loop: forward, state dicts, checkpoints.

    Attributes that it does not have are those of the model, `module`.
    """

    autocast: torch.dtype | None = None  # of the forward pass
    _policy: Policy
    _saves_model_only = False  # loads of what it saves begin with their own optimizer

    def __init__(self, model: nn.Module, shards: Shards) -> None:
        super().__init__()
        torch_state_dicts.serve()
        clipping.serve()
        clipping.serve_scalers()
        other_optimizers.watch()
        self.module = model
        self._shards, self._core, self._layout = shards, shards.core, shards.layout
        self._ranks = shards.ranks  # `communicator` is of those with the same part of the model
        self.config: dict[str, Any] = {}
        self.optimizer: ZeroOptimizer | None = None
        self.lr_scheduler: Any = None
        self.training_dataloader: Any = None
        self.micro_steps = 0
        self.global_steps = 0
        self._stream: ParameterStream | None = None
        self._streamed_hashes: dict[int, dict[str, bytes]] = {}  # by step and name

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise _C.ConfigError(
            "an engine cannot be copied or pickled, since its states are shared among the ranks: "
            "copy.deepcopy(engine.module) is a whole model of its own, which initialize gives "
            "an engine; save_checkpoint saves everything"
        )

    @property
    def communicator(self) -> _C.Communicator:
        return self._shards.communicator

    @property
    def skipped_steps(self) -> int:
        return self._core.skipped_steps

    @property
    def device(self) -> torch.device:
        """The device of the model and of its inputs."""
        return self._shards.device

    @property
    def stage(self) -> int:
        """What is sharded: 0 nothing; 1 optimizer states; 2 also gradients; 3 also parameters."""
        return self._shards.stage

    def zero_optimization_stage(self) -> int:
        return self._shards.stage

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            model = super().__getattr__("module")
            if name not in _INNER or hasattr(model, name):
                return getattr(model, name)
            warn(
                f"engine.{name} is an inner part, which has no name from 0.3 on", DeprecationWarning
            )
            return attrgetter(_INNER[name])(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._check_open("forward")
        if self.autocast is not None:
            with torch.autocast(self.device.type, self.autocast):
                return self.module(*args, **kwargs)
        dtype = self._input_dtype()
        if dtype is not None:

            def cast(tensor: torch.Tensor) -> torch.Tensor:
                return tensor.to(dtype) if tensor.is_floating_point() else tensor

            args, kwargs = cast_in((args, kwargs), cast)
        return self.module(*args, **kwargs)

    def _input_dtype(self) -> torch.dtype | None:
        """The dtype that forward casts floating-point inputs to; None: it casts nothing."""
        precision = self._shards.settings.precision
        casts = precision.auto_cast_inputs and precision.param_dtype == "fp16"
        return torch.float16 if casts else None

    def state_dict(  # type: ignore[override]
        self, *args: Any, keep_vars: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """The model's ``state_dict()``, with the same arguments.

        Raises ConfigError if a parameter is empty (at stage 3, outside of a gather), unless
        `keep_vars` requests the parameters themselves.
        """
        for parameter, name in self._layout.names.items():
            if not keep_vars and local_of(parameter).shape != self._layout.shapes[parameter]:
                raise _C.ConfigError(f"state_dict: {name} is empty, since it is {EMPTY_PARAMETERS}")
        return self.module.state_dict(*args, keep_vars=keep_vars, **kwargs)

    def full_state_dict(self, *, rank0_only: bool = True) -> dict[str, torch.Tensor] | None:
        """The model's state dict with full parameters in host memory, at every stage. Collective.

        Names are those of the model that is not compiled, as in checkpoints.
        Returns None on ranks other than 0; with `rank0_only` False every rank gets a copy. Gathers
        one unit at a time.
        """
        from zerorun.checkpoints.streaming import full_state_dict

        self._check_open("full_state_dict")
        return full_state_dict(self.module, self._ranks, everywhere=not rank0_only)

    def iter_full_parameters(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields name and full values of each parameter, tied ones once, for inference engines.

        Collective: every rank iterates to the end, or all stop at the same parameter. The tensors
        are copies. `dtype`: of floating-point tensors; None: the model's. `device`: None: the
        model's. Gathers each unit once, one at a time.
        """
        from zerorun.checkpoints.streaming import check_one_model, full_parameters_of

        self._check_open("iter_full_parameters")
        check_one_model(self.module, self._ranks)
        for name, parameter in full_parameters_of(self.module):
            kept = dtype if parameter.is_floating_point() else None
            yield name, whole_of(parameter).to(device or parameter.device, kept, copy=True)

    def stream_parameters(
        self,
        *,
        bucket_bytes: int = 256 << 20,
        dtype: torch.dtype | None = None,
        owners: str = "rank0",
        changed_since: int | None = None,
        merge_adapters: bool = False,
    ) -> ParameterStream:
        """The model's parameters and persistent buffers in flat buckets, in an order that does not
        change, for engines that generate or evaluate elsewhere. Collective: every rank iterates.

        - `bucket_bytes`: of a bucket; a tensor that is larger has a bucket alone.
        - `dtype`: of floating-point parameters; None: the model's.
        - `owners`: "rank0": rank 0 has the data. "all": each rank has tensors of its own, so all
          network cards send; the ranks' buckets of one turn have about the same size.
        - `changed_since`: leaves out tensors whose bits, as streamed, are those of that step
          (`global_steps`). A step counts if it was streamed to the end with `changed_since`, and is
          one of the last four; otherwise every tensor is given.
        - `merge_adapters`: PEFT's adapters are within the weights, under the base model's names.

        Yields :class:`ParameterBucket`. All ranks yield the same number of times, so a program may
        communicate between two buckets. At most two buckets are in memory, the program's and the
        next, besides one unit at stage 3, each of which is gathered once. Tied tensors are given
        once. A ``break`` on every rank leaves it; its memory goes with the next step or stream, or
        with ``close()``. A step ends a stream: the next bucket is then a ConfigError. So are wrong
        arguments, ranks that disagree about them, and models that are
        divided among ranks by other means.
        """
        self._check_open("stream_parameters")
        self._end_stream("another stream")
        from zerorun.checkpoints import streaming

        options = bucket_bytes, dtype, owners, changed_since, merge_adapters
        self._stream = stream = streaming.ParameterStream(self, *options)
        return stream

    def _end_stream(self, by: str) -> None:
        """Of a loop that an error has left, whose traceback may hold it."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close(by)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's ``load_state_dict()``, which also updates the master parameters.

        Raises ConfigError at stage 3.
        """
        if self._shards.stage == 3:
            raise _C.ConfigError(
                "load_state_dict: parameters are sharded at stage 3; use load_checkpoint, or copy "
                "within zerorun.zero.GatheredParameters(params, modifier_rank=0)"
            )
        result = self.module.load_state_dict(*args, **kwargs)
        masters_from_parameters(self._shards.core, self._shards.layout)
        self._shards.writes.forget()
        return result

    def _check_open(self, method: str) -> None:
        if self._core.closed:
            raise _C.ConfigError(
                f"{method}: this engine was destroyed, by destroy() or by another initialize of "
                "its model; use that one, or call initialize again"
            )

    def drop_batch(self) -> None:
        """Discards all gradients since the last update. Collective."""
        raise NotImplementedError

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool | None = False,
        *,
        blocking: bool | None = None,
    ) -> bool:
        """Saves everything that is needed to continue training in `save_dir`/`tag`. Collective.

        - `tag`: default ``global_step<N>``; rank 0's is used.
        - `client_state`: returned by :meth:`load_checkpoint`: plain values, tensors and arrays.
          Other objects need ``checkpoint.pickle_client_state`` in the configuration.
        - `save_latest`: later loads without a tag load this checkpoint.
        - `exclude_frozen_parameters`: do not save frozen parameters; a load does not change them.
        - `blocking`: False returns when the states are copied, and a thread writes them while
          training continues. Default: ``checkpoint.async_save`` of the configuration.

        A save waits for the previous one. Returns True. Raises ConfigError for a `client_state`
        that cannot be saved, and CheckpointError or IoError on every rank, also for an earlier
        asynchronous save that failed; so do :meth:`step` and :meth:`wait_for_checkpoint`.
        """
        self._shards.writes.take()
        from zerorun.checkpoints import checkpoint, model_parts

        save = model_parts.save if self._ranks.model_size > 1 else checkpoint.save
        save(
            self,
            save_dir,
            tag,
            client_state,
            save_latest=save_latest,
            exclude_frozen=bool(exclude_frozen_parameters),
            blocking=not self._shards.settings.checkpoint.async_save
            if blocking is None
            else blocking,
        )
        return True

    def wait_for_checkpoint(self) -> None:
        """Waits until the last save is complete on disk. Raises its error on every rank if it
        failed. Collective. Does nothing after a blocking save."""
        self._shards.saver.wait()

    def load_checkpoint(  # noqa: PLR0913, PLR0917 - DeepSpeed's signature
        self,
        load_dir: str | os.PathLike[str],
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Loads a checkpoint, saved at any stage on any number of ranks. Collective.

        - `load_dir`: a folder of zerorun's, DeepSpeed's (stages 1 to 3, universal) or
          torch.distributed.checkpoint's, or a model in Hugging Face's layout (docs/checkpoints.md).
        - `tag`: rank 0's is used. None: the one in the file ``latest``, or `load_dir` itself.
        - `load_module_strict`: False leaves parameters that only the model or only the checkpoint
          has, and buffers of another shape, unchanged.
        - `load_optimizer_states`, `load_lr_scheduler_states`: False leaves those unchanged.
        - `load_module_only`: loads only the model, not even counters.
        - `custom_load_fn`: not supported.

        Returns (path, client_state), or (None, None) if `load_dir` has no checkpoint. Runs no code
        from the checkpoint, unless ``checkpoint.pickle_client_state`` allows unpickling. Raises
        CheckpointError, before anything changes, that names each difference from the saved model.
        """
        self._check_open("load_checkpoint")
        if custom_load_fn is not None:
            raise _C.ConfigError("load_checkpoint: custom_load_fn is not supported")
        self._shards.writes.take()
        from zerorun.checkpoints import checkpoint, model_parts

        wanted = checkpoint.Wanted(
            load_module_strict,
            load_optimizer_states and not load_module_only,
            load_lr_scheduler_states and not load_module_only,
            not load_module_only,
        )
        load = model_parts.load if self._ranks.model_size > 1 else _load_whole
        path, client_state = load(self, load_dir, tag, wanted)
        if path is not None:
            self._streamed_hashes.clear()  # of another course of steps
            self.drop_batch()
        return path, client_state

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves the full model's state dict to one file, written by rank 0. Collective.

        Floating-point values have the model's dtype. Returns True.
        """
        from zerorun.checkpoints.streaming import save_full_state

        save_full_state(
            self.module, self._ranks, save_dir, save_filename, exclude_frozen_parameters
        )
        return True

    def destroy(self) -> None:
        """Frees the engine's memory and removes all hooks from the model, which stays usable.

        Parameters become ordinary tensors; at stage 3 they stay sharded, as made by zero.Init.
        Without it the memory goes with the model, whatever else a program deletes: the states
        belong to the parameters. A second call does nothing. Collective at stage 3 if ranks do not
        share parameters (on GPUs); otherwise no other rank may be within a step meanwhile.
        """
        shards = self.__dict__.get("_shards")
        if shards is not None:
            self._end_stream("destroy()")
            shards.close()
