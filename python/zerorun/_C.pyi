# Written by scripts/core_stubs.py.
"""
The C++ core of zerorun.
"""

from __future__ import annotations
import collections.abc
import typing

class Error(RuntimeError): ...
class CheckpointError(Error, ValueError): ...
class CommError(Error): ...
class ConfigError(Error, ValueError): ...
class DeviceError(Error): ...
class InternalError(Error, AssertionError): ...
class IoError(Error, OSError): ...
class NumericError(Error, ArithmeticError): ...

__all__: list[str] = [
    "AsyncSaver",
    "BatchConfig",
    "CheckpointConfig",
    "CheckpointError",
    "CommError",
    "Communicator",
    "Config",
    "ConfigError",
    "ConfigValue",
    "DeviceError",
    "ELSEWHERE",
    "EXTERNAL_OPTIMIZER",
    "ElasticBatch",
    "Elasticity",
    "Engine",
    "EngineFigures",
    "Error",
    "Gpu",
    "GradientCollector",
    "InternalError",
    "IoError",
    "LoadedCheckpoint",
    "LossScalerOptions",
    "LrSchedule",
    "NumericError",
    "OptimizerConfig",
    "PagePool",
    "ParameterGroup",
    "ParameterSpec",
    "ParameterSwitch",
    "ParsedConfig",
    "PrecisionConfig",
    "RankInfo",
    "SavedModel",
    "SavedParameter",
    "SchedulerConfig",
    "StateInterval",
    "StepResult",
    "Store",
    "Timeline",
    "ZeroConfig",
    "adapt_config",
    "batch_for",
    "bring_files",
    "check_scheduler",
    "config_schema",
    "connect",
    "connect_from_environment",
    "elastic_batch",
    "elasticity_of",
    "export_safetensors",
    "load_checkpoint",
    "load_config",
    "make_lr_schedule",
    "make_memory_store",
    "make_store",
    "nearest_name",
    "nearest_parameter",
    "parse_config",
    "plain_config_json",
    "printable",
    "rank_from_environment",
    "resolve_auto",
    "resolve_batch",
    "save_checkpoint",
    "share_checkpoint",
    "stack_requests",
    "why_no_cuda",
]

class BatchConfig:
    """
    Batch sizes; 0 means not given.
    """
    def __init__(
        self,
        *,
        train_batch_size: typing.SupportsInt | typing.SupportsIndex = 0,
        micro_batch_size: typing.SupportsInt | typing.SupportsIndex = 0,
        accumulation_steps: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def accumulation_steps(self) -> int: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def train_batch_size(self) -> int: ...

class LossScalerOptions:
    """
    Loss scaling of training in fp16.
    """
    def __repr__(self) -> str: ...
    @property
    def consecutive_hysteresis(self) -> bool: ...
    @property
    def hysteresis(self) -> int: ...
    @property
    def initial_scale_power(self) -> int: ...
    @property
    def min_scale(self) -> float: ...
    @property
    def static_scale(self) -> float: ...
    @property
    def window(self) -> int: ...

class PrecisionConfig:
    """
    Types of parameters and gradients.
    """
    def __repr__(self) -> str: ...
    @property
    def auto_cast_inputs(self) -> bool: ...
    @property
    def check_grad_overflow(self) -> bool: ...
    @property
    def communication_dtype(self) -> str | None: ...
    @property
    def grad_accum_dtype(self) -> str | None: ...
    @property
    def gradient_predivide_factor(self) -> float: ...
    @property
    def gradient_reduction(self) -> str: ...
    @property
    def loss_scaler(self) -> LossScalerOptions: ...
    @property
    def master_is_param(self) -> bool: ...
    @property
    def param_dtype(self) -> str: ...
    @property
    def prescale_gradients(self) -> bool: ...
    @property
    def scales_loss(self) -> bool: ...
    @property
    def state_dtype(self) -> str: ...

class OptimizerConfig:
    """
    The optimizer and its parameters.
    """
    def __repr__(self) -> str: ...
    @property
    def adam_lr(self) -> float: ...
    @property
    def adam_w_mode(self) -> bool: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def bias_correction(self) -> bool: ...
    @property
    def dampening(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def eps_inside_sqrt(self) -> bool: ...
    @property
    def lr(self) -> float: ...
    @property
    def lr_decay(self) -> float: ...
    @property
    def max_coeff(self) -> float: ...
    @property
    def min_coeff(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def muon_heads(self) -> list[tuple[str, int]]: ...
    @property
    def muon_lr(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...
    @property
    def ns_method(self) -> str: ...
    @property
    def ns_steps(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def weight_decay(self) -> float: ...

class SchedulerConfig:
    """
    The learning rate schedule.
    """
    def __repr__(self) -> str: ...
    @property
    def last_batch_iteration(self) -> int: ...
    @property
    def total_num_steps(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def warmup_num_steps(self) -> int: ...

class CheckpointConfig:
    """
    How a run saves.
    """
    def __repr__(self) -> str: ...
    @property
    def async_buffer_size(self) -> int: ...
    @property
    def async_save(self) -> bool: ...
    @property
    def keep_every(self) -> int: ...
    @property
    def keep_last(self) -> int: ...

class ZeroConfig:
    """
    What is sharded, and in which portions.
    """
    def __repr__(self) -> str: ...
    @property
    def allgather_bucket_size(self) -> int: ...
    @property
    def max_live_parameters(self) -> int: ...
    @property
    def max_reuse_distance(self) -> int: ...
    @property
    def model_persistence_threshold(self) -> int: ...
    @property
    def overlap_comm(self) -> bool | None: ...
    @property
    def overlap_param_gather(self) -> bool: ...
    @property
    def param_persistence_threshold(self) -> int: ...
    @property
    def prefetch_bucket_size(self) -> int: ...
    @property
    def reduce_bucket_size(self) -> int: ...
    @property
    def shard_group_size(self) -> int: ...
    @property
    def stage(self) -> int: ...

class Config:
    """
    The typed form of a ds_config.json.
    """
    def __repr__(self) -> str: ...
    @property
    def batch(self) -> BatchConfig: ...
    @property
    def checkpoint(self) -> CheckpointConfig: ...
    @property
    def comm_timeout_s(self) -> float: ...
    @property
    def gradient_clipping(self) -> float: ...
    @property
    def optimizer(self) -> OptimizerConfig: ...
    @property
    def precision(self) -> PrecisionConfig: ...
    @property
    def scheduler(self) -> SchedulerConfig: ...
    @property
    def share_parameters(self) -> bool: ...
    @property
    def source(self) -> str: ...
    @property
    def steps_per_print(self) -> int | None: ...
    @property
    def train_options(self) -> str: ...
    @property
    def wall_clock_breakdown(self) -> bool: ...
    @property
    def zero(self) -> ZeroConfig: ...

class ConfigValue:
    """
    One key of a configuration, and its value.
    """
    def __repr__(self) -> str: ...
    @property
    def fallback(self) -> str: ...
    @property
    def is_auto(self) -> bool: ...
    @property
    def is_default(self) -> bool: ...
    @property
    def is_given(self) -> bool: ...
    @property
    def pointer(self) -> str: ...
    @property
    def value(self) -> str: ...

class ParsedConfig:
    """
    A configuration and where it comes from.
    """
    def __repr__(self) -> str: ...
    @property
    def config(self) -> Config: ...
    @property
    def values(self) -> list[ConfigValue]: ...
    @property
    def warnings(self) -> list[str]: ...

class Elasticity:
    """
    The section elasticity.
    """
    def __repr__(self) -> str: ...
    @property
    def enabled(self) -> bool: ...
    @property
    def max_gpus(self) -> int: ...
    @property
    def max_train_batch_size(self) -> int: ...
    @property
    def micro_batch_sizes(self) -> list[int]: ...
    @property
    def min_gpus(self) -> int: ...
    @property
    def model_parallel_size(self) -> int: ...
    @property
    def num_gpus_per_node(self) -> int: ...
    @property
    def prefer_larger_batch(self) -> bool: ...
    @property
    def version(self) -> float: ...

class ElasticBatch:
    """
    What the rules of elasticity give.
    """
    def __repr__(self) -> str: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def train_batch_size(self) -> int: ...
    @property
    def world_sizes(self) -> list[int]: ...

class Gpu:
    """
    A GPU for one engine.
    """
    def __init__(
        self,
        index: typing.SupportsInt | typing.SupportsIndex | None,
        exchange_api: typing.Any,
        current_stream: typing.Any,
        reclaim: typing.Any = None,
    ) -> None:
        """
        `index`: among the visible ones; None: LOCAL_RANK's. The current stream is what DLPack's exchange API says, else the handle that `current_stream` returns. `reclaim` is called where the GPU has no memory left, before an allocation fails. Raises DeviceError.
        """
    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...

class RankInfo:
    """
    Who this process is, from the launcher's variables.
    """
    @property
    def local_rank(self) -> int: ...
    @property
    def local_world_size(self) -> int: ...
    @property
    def master_addr(self) -> str: ...
    @property
    def master_port(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...

class Store:
    """
    Through which ranks find each other.
    """
    @property
    def port(self) -> int: ...

class Communicator:
    """
    Collectives among the ranks of one job, through the host: tensors of a GPU are copied there and back.
    """
    def abort(self, reason: str) -> None:
        """
        Makes every peer's current and later collective fail with `reason`.
        """
    def all_gather(self, tensor: typing.Any, out: typing.Any, label: str = "all_gather") -> None:
        """
        `out` (numel = world_size times that of `tensor`): the ranks' tensors, in rank order.
        """
    def all_reduce(self, tensor: typing.Any, op: str = "sum", label: str = "all_reduce") -> None:
        """
        In place over all ranks; fp32 sums in a fixed tree of ranks.
        """
    def barrier(self, label: str = "barrier") -> None:
        """
        Waits for all ranks.
        """
    def broadcast(
        self,
        tensor: typing.Any,
        root: typing.SupportsInt | typing.SupportsIndex = 0,
        label: str = "broadcast",
    ) -> None:
        """
        The root's elements, in place.
        """
    def broadcast_on_gpu(
        self,
        tensor: typing.Any,
        root: typing.SupportsInt | typing.SupportsIndex = 0,
        label: str = "broadcast",
    ) -> None:
        """
        As broadcast, of tensors on the GPUs of the ranks' engines, not through the host.
        """
    def duplicate(
        self, timeout_s: typing.SupportsFloat | typing.SupportsIndex = 600.0, gpu: Gpu | None = None
    ) -> Communicator:
        """
        Another communicator of the same ranks (collective). `gpu`: where its engine works.
        """
    def split(
        self,
        color: typing.SupportsInt | typing.SupportsIndex,
        key: typing.SupportsInt | typing.SupportsIndex,
        name: str,
    ) -> Communicator:
        """
        The communicator of the ranks that give the same color, in the order of their keys; an error of either is one of both (collective). `name`: the group's, in errors.
        """
    @property
    def rank(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def world_size(self) -> int: ...

class ParameterSpec:
    """
    One parameter of a model.
    """

    module: str
    use_muon: bool
    def __init__(
        self,
        name: str,
        shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        module: str,
        group: typing.SupportsInt | typing.SupportsIndex = 0,
        trainable: bool = True,
        alias_of: str = "",
    ) -> None: ...
    @property
    def alias_of(self) -> str: ...
    @property
    def counted(self) -> bool:
        """
        False for a replica of what another part of the model adds to norms.
        """
    @counted.setter
    def counted(self, arg0: bool) -> None: ...
    @property
    def divided(self) -> bool:
        """
        A part of a tensor that is divided among the ranks of Engine's `tensor`.
        """
    @divided.setter
    def divided(self, arg0: bool) -> None: ...
    @property
    def dtype(self) -> str | None:
        """
        Of a frozen parameter that is kept bit by bit in a dtype of its own; None: the engine's.
        """
    @dtype.setter
    def dtype(self, arg0: str | None) -> None: ...
    @property
    def group(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def outputs_are_columns(self) -> bool:
        """
        A Conv1D's weight, which `muon_heads` cannot divide.
        """
    @outputs_are_columns.setter
    def outputs_are_columns(self, arg0: bool) -> None: ...
    @property
    def ranks(self) -> int:
        """
        Who has it: 0 all of the engine's ranks, else a group of Engine's `parts`, counted from 1; -1 others than this rank.
        """
    @ranks.setter
    def ranks(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def replica(self) -> bool:
        """
        A copy of what a rank before this one in Engine's `tensor` has.
        """
    @replica.setter
    def replica(self, arg0: bool) -> None: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def trainable(self) -> bool: ...

class ParameterGroup:
    """
    Hyperparameters that change between steps.
    """

    name: str
    def __init__(self) -> None: ...
    @property
    def beta1(self) -> float | None: ...
    @beta1.setter
    def beta1(self, arg0: typing.SupportsFloat | typing.SupportsIndex | None) -> None: ...
    @property
    def beta2(self) -> float | None: ...
    @beta2.setter
    def beta2(self, arg0: typing.SupportsFloat | typing.SupportsIndex | None) -> None: ...
    @property
    def eps(self) -> float | None: ...
    @eps.setter
    def eps(self, arg0: typing.SupportsFloat | typing.SupportsIndex | None) -> None: ...
    @property
    def lr(self) -> float: ...
    @lr.setter
    def lr(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def weight_decay(self) -> float: ...
    @weight_decay.setter
    def weight_decay(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...

class StepResult:
    """
    What one optimizer step did.
    """
    @property
    def applied(self) -> bool: ...
    @property
    def clip_factor(self) -> float: ...
    @property
    def grad_norm(self) -> float: ...
    @property
    def had_gradient(self) -> bool: ...
    @property
    def loss_scale(self) -> float: ...

class StateInterval:
    """
    A part of one parameter that this rank holds; tensors are flat DLPack capsules.
    """
    @property
    def begin(self) -> int: ...
    @property
    def grad(self) -> typing.Any | None: ...
    @property
    def master(self) -> typing.Any | None: ...
    @property
    def numel(self) -> int: ...
    @property
    def owned(self) -> bool:
        """
        False on all but one of the ranks that hold it (shard groups).
        """
    @property
    def param(self) -> typing.Any: ...
    @property
    def parameter(self) -> int: ...
    @property
    def states(self) -> list[typing.Any]: ...

class Engine:
    """
    Shards one model's states over the ranks and steps it.
    """
    def __init__(
        self,
        config: Config,
        communicator: typing.Any,
        specs: collections.abc.Sequence[ParameterSpec],
        groups: collections.abc.Sequence[ParameterGroup],
        job: typing.Any = None,
        part: tuple[
            typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
        ] = (0, 1),
        tensor: typing.Any = None,
        parts: list[typing.Any] = [],
        moved_nbytes: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None:
        """
        `job`: of all ranks that step together, where the engine has part number part[0] of part[1] of one model. `tensor`: of the ranks that hold the parts of this rank's tensors. `parts`: of some of the engine's ranks, who share an expert. `moved_nbytes`: host memory that is free once the engine has the values. Collective. Raises ConfigError for what contradicts each other.
        """
    def accept_changes(self) -> None:
        """
        Before and after parameters with their masters are written without refresh_from_masters. Collective.
        """
    def accept_gradients(self) -> None:
        """
        After gradients were written: the next step's norm and decision follow them.
        """
    def close(self) -> None:
        """
        Lets go of the engine; its memory ends with the last tensor that views it.
        """
    def decoded_part(self, index: typing.SupportsInt | typing.SupportsIndex) -> typing.Any | None:
        """
        What ranks compute with in place of this rank's part of the parameter, if its gathers are quantized and it is always full, or None; then padding.
        """
    def drop_batch(self) -> None:
        """
        Forgets the gradients since the last step. Collective.
        """
    def end_micro_step(self) -> bool:
        """
        True when a whole batch has been accumulated and a step is due. Collective.
        """
    def finish_updates(self) -> None:
        """
        As use_parameters, of all parameters.
        """
    def full_place(
        self, index: typing.SupportsInt | typing.SupportsIndex
    ) -> tuple[int, int, int] | None:
        """
        (bucket, first element in its full memory, elements of that) of a parameter whose full memory comes and goes; None: `parameter` always is in the same place.
        """
    def groups(self) -> list[ParameterGroup]: ...
    def is_sharded(self, index: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether the parameter is full between gather and release only.
        """
    def memory_use(self) -> dict[str, int]: ...
    def offload_states(self) -> None:
        """
        Moves masters and optimizer states from a GPU to host memory, until reload_states() or their next use. Tensors that view them end.
        """
    def parameter(self, index: typing.SupportsInt | typing.SupportsIndex) -> typing.Any:
        """
        The full parameter, flat, as a DLPack capsule.
        """
    def parameter_hash(self) -> int:
        """
        The same for every world size, stage and bucket size. Collective.
        """
    def parameter_id(self, name: str) -> int: ...
    def reduce_gradients(self) -> None:
        """
        Reduces what came so far of this micro-step; unused parameters count as zero. Collective.
        """
    def reduce_late_gradients(self) -> None:
        """
        Reduces what came after its bucket was reduced, before gradients are read. Collective.
        """
    def refresh_from_masters(self) -> None:
        """
        Casts the masters into the parameters again, on all ranks. Collective.
        """
    def reload_states(self) -> None:
        """
        Brings them back.
        """
    def reset_optimizer(self) -> None:
        """
        Optimizer states and step count as before the first step.
        """
    def set_progress(
        self,
        step_count: typing.SupportsInt | typing.SupportsIndex,
        skipped_steps: typing.SupportsInt | typing.SupportsIndex,
        loss_scaler: tuple[
            typing.SupportsFloat | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
        ]
        | None = None,
    ) -> None:
        """
        How far training has come. `loss_scaler`: as the property, None to keep it; ConfigError for what no scaler can be in.
        """
    def state_intervals(
        self, parameter: typing.SupportsInt | typing.SupportsIndex | None = None
    ) -> list[StateInterval]:
        """
        What this rank holds (of one parameter): every element is owned by one rank.
        """
    def state_names(self, parameter: typing.SupportsInt | typing.SupportsIndex) -> list[str]:
        """
        Names of StateInterval.states of this parameter.
        """
    def step(self, finish: bool = True) -> StepResult:
        """
        Updates the parameters. Without `finish`, their gathers may continue until use_parameters or finish_updates. Collective.
        """
    def step_with(
        self, update: collections.abc.Callable[..., typing.Any], finish: bool = True
    ) -> StepResult:
        """
        As step, with an optimizer of the caller's: `update` gets this rank's intervals, whose `grad` is averaged, unscaled and clipped, and changes `master`. Collective.
        """
    def use_full_memory(
        self, acquire: typing.Any, release: typing.Any, out_of_memory: typing.Any
    ) -> None:
        """
        `acquire(bucket)` returns the address of memory for a bucket's full parameters, or raises an exception of the class `out_of_memory`; `release(bucket)` ends its use. Between gathers.
        """
    def use_parameters(
        self, parameters: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
    ) -> None:
        """
        Later work on these parameters, and on those of their buckets, sees updated values.
        """
    def whole_gradient(self, index: typing.SupportsInt | typing.SupportsIndex) -> typing.Any | None:
        """
        The whole reduced gradient where this rank stores it (stage 0), or None.
        """
    @property
    def accumulation_steps(self) -> int:
        """
        Micro-steps of a batch, over which the gradient is averaged.
        """
    @accumulation_steps.setter
    def accumulation_steps(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def batch_micro_steps(self) -> int:
        """
        Micro-steps of the current batch that have ended.
        """
    @property
    def boundary(self) -> bool | None:
        """
        Whether the coming micro-steps each end a batch; None: they are counted.
        """
    @boundary.setter
    def boundary(self, arg1: bool | None) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def gradient_average(self) -> float: ...
    @property
    def is_last_micro_step(self) -> bool:
        """
        Whether the current micro-step completes a batch.
        """
    @property
    def loss_scale(self) -> float: ...
    @property
    def loss_scaler(self) -> tuple[float, int, int, int] | None:
        """
        (cur_scale, cur_iter, last_overflow_iter, cur_hysteresis); None without fp16.
        """
    @property
    def model_state_bytes(self) -> int: ...
    @property
    def no_sync(self) -> bool:
        """
        No micro-step ends a batch.
        """
    @no_sync.setter
    def no_sync(self, arg1: bool) -> None: ...
    @property
    def param_dtype(self) -> str: ...
    @property
    def phase(self) -> str:
        """
        "idle", "open", "reduced" or "step_due".
        """
    @property
    def skipped_steps(self) -> int: ...
    @property
    def step_count(self) -> int: ...

class EngineFigures:
    """
    What an engine did and holds, in numbers.
    """
    def __init__(self, engine: Engine) -> None: ...
    def collective_limits(self) -> dict[str, float]:
        """
        {operation: bytes of the full tensor per second that large collectives reach}, measured. Collective.
        """
    def collectives(self) -> dict[str, tuple[int, int, float]]:
        """
        {operation: (calls, bytes of the full tensors, seconds)} since the engine was made; seconds since measure_work(), not a number on a GPU's stream.
        """
    def enter(self, part: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Time from now on is of this part of a step: 0 computation, 1 data, 2 copies, 3 saves. Returns the part of the time before.
        """
    def measure_work(self) -> None:
        """
        From now on the engine's streams are observed, for take_work().
        """
    def memory(self) -> dict[str, tuple[int, int]]:
        """
        {category of the ledger: (bytes now, most bytes so far)}, without those never used.
        """
    def memory_plan(self) -> dict[str, int]:
        """
        {category of the ledger: bytes that the engine is planned to hold}.
        """
    def record_collectives(self) -> None:
        """
        From now on every collective is kept for take_collectives().
        """
    def stragglers(self) -> dict[str, typing.Any]:
        """
        {step_shares: fractions of this rank's last step; straggler: of rank 0, where there is one}.
        """
    def take_collectives(self) -> tuple[list[tuple[str, str, int, float, float]], int]:
        """
        ([(operation, label, bytes, begin, end), ...], number of those dropped for want of room) since the last call; seconds of time.perf_counter(), not a number on a GPU's stream.
        """
    def take_timings(self) -> tuple[float, float, float]:
        """
        Seconds since the last call: (doing or waiting for reductions, for gathers, norm and update).
        """
    def take_work(self) -> dict[str, tuple[float, float]]:
        """
        {what: (seconds in which the program waited, others)} since the last call, of reduce, gather and offload; those that took no time or are not known are left out.
        """

class Timeline:
    """
    What every rank computed and communicated in some steps, and when.
    """
    def __init__(
        self,
        engine: Engine,
        file: str,
        first_step: typing.SupportsInt | typing.SupportsIndex,
        last_step: typing.SupportsInt | typing.SupportsIndex,
    ) -> None:
        """
        Rank 0 writes the file after the last of the steps, which count from 1.
        """
    def add(
        self,
        name: str,
        begin: typing.SupportsFloat | typing.SupportsIndex,
        end: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None:
        """
        Work of the program's own; seconds of time.perf_counter(). Ignored unless it records.
        """
    def end_step(self, step: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        After each step. Returns a line about the file where it was written, else ''. The last of them is collective.
        """
    @property
    def is_recording(self) -> bool: ...

class GradientCollector:
    """
    Hands autograd's gradients to an engine.
    """
    def __init__(self, engine: Engine) -> None: ...
    def hook(
        self, index: typing.SupportsInt | typing.SupportsIndex
    ) -> collections.abc.Callable[..., typing.Any]:
        """
        For Tensor.register_post_accumulate_grad_hook.
        """

class PagePool:
    """
    Ranges of host memory of which only some have pages at a time.
    """
    def __init__(self) -> None: ...
    def reserve(
        self,
        index: typing.SupportsInt | typing.SupportsIndex,
        nbytes: typing.SupportsInt | typing.SupportsIndex,
    ) -> typing.Any:
        """
        The range's bytes, as a DLPack capsule; an access while it has no pages is SIGSEGV.
        """
    def serve(self, engine: Engine) -> None:
        """
        From now on, the engine gathers a bucket into the range of its number. Between gathers.
        """

class ParameterSwitch:
    """
    One module's parameters at stage 3: full between acquire and release, else empty.
    """
    def __init__(self, engine: Engine, module: str) -> None: ...
    def acquire(self) -> None:
        """
        Makes the parameters full; nested calls count.
        """
    def add(self, parameter: typing.Any, full: typing.Any, empty: typing.Any, name: str) -> None:
        """
        A parameter with the two values of its `.data`.
        """
    def add_reader(
        self, parameters: typing.Any, watched: typing.Any, plain: typing.Any, cast: typing.Any
    ) -> None:
        """
        A dictionary with parameters of it, and its class outside of calls, in them, and in those under autocast.
        """
    def cast_reads(self) -> None:
        """
        Reads are those under autocast until the calls that hold it have left.
        """
    def enter(self, autocast: bool) -> None:
        """
        An acquire by a call, in forward or backward.
        """
    def leave(self) -> None:
        """
        Ends one enter; ConfigError if the program has replaced a parameter's `.data`.
        """
    def release(self) -> None:
        """
        Ends one acquire.
        """
    @property
    def available(self) -> bool: ...
    @property
    def entered(self) -> bool:
        """
        A call holds it.
        """

class LrSchedule:
    """
    Learning rates as a function of applied steps.
    """
    def last_batch_iteration(
        self, applied_steps: typing.SupportsInt | typing.SupportsIndex
    ) -> int: ...
    def values(
        self,
        applied_steps: typing.SupportsInt | typing.SupportsIndex,
        group: typing.SupportsInt | typing.SupportsIndex,
    ) -> tuple[float, tuple[float, float] | None]:
        """
        (lr, betas or None) for the step after `applied_steps`.
        """

class SavedParameter:
    """
    One parameter of a saved model.
    """
    @property
    def alias_of(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def saved(self) -> bool: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def trainable(self) -> bool: ...

class SavedModel:
    """
    The model in a checkpoint, read without an engine.
    """
    def __init__(self, directory: str, tag: str = "") -> None: ...
    def read(self, parameter: typing.SupportsInt | typing.SupportsIndex, out: typing.Any) -> None:
        """
        All elements of the parameter of that index, into a tensor.
        """
    def read_buffer(
        self, buffer: typing.SupportsInt | typing.SupportsIndex, out: typing.Any
    ) -> None:
        """
        The bytes of the buffer of that index, into a uint8 tensor.
        """
    @property
    def buffers(self) -> list[tuple[str, str, list[int]]]:
        """
        (name, dtype as safetensors spells it, shape) of each.
        """
    @property
    def client_state(self) -> str: ...
    @property
    def configuration(self) -> str: ...
    @property
    def parameters(self) -> list[SavedParameter]: ...
    @property
    def step(self) -> int: ...
    @property
    def tag(self) -> str: ...

class LoadedCheckpoint:
    """
    What was loaded besides the model.
    """
    @property
    def client_state(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def tag(self) -> str: ...

class AsyncSaver:
    """
    Saves that a thread writes beside the training.
    """
    def __init__(
        self,
        engine: Engine,
        buffer_nbytes: typing.SupportsInt | typing.SupportsIndex,
        peer_timeout: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None:
        """
        `buffer_nbytes`: of the snapshot, 0: what fits. `peer_timeout`: seconds that rank 0 waits for the files of others.
        """
    def poll(self) -> bool:
        """
        Collective. True when no save is under way; throws the error of one that failed.
        """
    def save(
        self,
        directory: str,
        tag: str,
        client_state: str = "{}",
        exclude_frozen: bool = False,
        update_latest: bool = True,
        configuration: str = "",
        buffers: collections.abc.Sequence[
            tuple[
                str,
                str,
                collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
                typing.Any,
            ]
        ] = [],
        keep: tuple[
            typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
        ] = (0, 0),
        node_local: bool = False,
    ) -> None:
        """
        Collective. Returns when the states are copied. Throws the error of the save before.
        """
    def wait(self) -> None:
        """
        Collective. Waits for the last save and throws its error.
        """
    def wait_alone(self) -> None:
        """
        The same without the other ranks, for a program that ends.
        """

def adapt_config(
    config: Config,
    param_dtype: str,
    accumulation_steps: typing.SupportsInt | typing.SupportsIndex,
    optimizer: str | None = None,
    hyperparameters: dict[str, typing.Any] = {},
) -> Config:
    """
    A configuration for a program that brings its own model dtype and optimizer.
    """

def batch_for(
    parsed: ParsedConfig, world_size: typing.SupportsInt | typing.SupportsIndex
) -> BatchConfig: ...
def bring_files(
    engine: Engine,
    folder: str,
    files: collections.abc.Sequence[tuple[str, typing.SupportsInt | typing.SupportsIndex, str]],
    needed: collections.abc.Sequence[bool],
) -> None:
    """
    Collective. Copies files, as (name, bytes, host where it was written), to the disks of ranks that need them and lack them; the folder is made where it is missing.
    """

def check_scheduler(elasticity: Elasticity) -> None: ...
def config_schema() -> str: ...
def connect(
    rank: typing.SupportsInt | typing.SupportsIndex,
    world_size: typing.SupportsInt | typing.SupportsIndex,
    store: Store | None = None,
    name: str = "world",
    timeout_s: typing.SupportsFloat | typing.SupportsIndex = 600.0,
    gpu: Gpu | None = None,
    master_addr: str = "",
) -> Communicator:
    """
    A communicator; `store` is needed for more than one rank. `gpu`: where its engine works. `master_addr`: of rank 0's host, where ranks are on several.
    """

def connect_from_environment(
    timeout_s: typing.SupportsFloat | typing.SupportsIndex = 600.0,
) -> Communicator:
    """
    The communicator of this process's job.
    """

def elastic_batch(
    elasticity: Elasticity, world_size: typing.SupportsInt | typing.SupportsIndex
) -> ElasticBatch: ...
def elasticity_of(parsed: ParsedConfig) -> Elasticity: ...
def export_safetensors(
    engine: Engine,
    path: str,
    tensors: collections.abc.Sequence[
        tuple[str, str, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]
    ],
    metadata: str = "{}",
) -> None:
    """
    Collective. `tensors`: (name in the file, parameter, shape); no rank needs the whole model.
    """

def load_checkpoint(
    engine: Engine, directory: str, tag: str = "", strict: bool = True
) -> LoadedCheckpoint:
    """
    Collective. Any world size and stage may load what any other saved.
    """

def load_config(path: str) -> ParsedConfig: ...
def make_lr_schedule(
    config: Config, base_lrs: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]
) -> LrSchedule:
    """
    The schedule of the configuration's scheduler block.
    """

def make_memory_store() -> Store:
    """
    A store for ranks that are threads.
    """

def make_store(
    host: str,
    port: typing.SupportsInt | typing.SupportsIndex,
    serve: bool,
    secret: str,
    timeout_s: typing.SupportsFloat | typing.SupportsIndex,
) -> Store:
    """
    A TCP store; the rank that serves picks a free port when `port` is 0, and listens on all of its host's addresses unless `host` is the loopback.
    """

def nearest_name(name: str, candidates: collections.abc.Sequence[str]) -> str:
    """
    The candidate that is nearest to `name`; empty when none is near.
    """

def nearest_parameter(name: str, candidates: collections.abc.Sequence[str]) -> str:
    """
    The parameter that was meant by a name which is not there; empty when none is near.
    """

def parse_config(json: str, source: str = "<string>") -> ParsedConfig: ...
def plain_config_json(path: str) -> str: ...
def printable(text: str) -> str:
    """
    The text with control characters escaped, but for line breaks and tabs.
    """

def rank_from_environment() -> RankInfo:
    """
    RANK, WORLD_SIZE, ... of this process; rank 0 of 1 without them.
    """

def resolve_auto(
    parsed: ParsedConfig,
    *,
    world_size: typing.SupportsInt | typing.SupportsIndex = 0,
    hidden_size: typing.SupportsInt | typing.SupportsIndex = 0,
    total_steps: typing.SupportsInt | typing.SupportsIndex = 0,
    warmup_steps: typing.SupportsInt | typing.SupportsIndex | None = None,
) -> ParsedConfig: ...
def resolve_batch(
    given: BatchConfig, world_size: typing.SupportsInt | typing.SupportsIndex
) -> BatchConfig: ...
def save_checkpoint(
    engine: Engine,
    directory: str,
    tag: str,
    client_state: str = "{}",
    exclude_frozen: bool = False,
    update_latest: bool = True,
    configuration: str = "",
    buffers: collections.abc.Sequence[
        tuple[
            str,
            str,
            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
            typing.Any,
        ]
    ] = [],
    keep: tuple[
        typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex
    ] = (0, 0),
    node_local: bool = False,
) -> None:
    """
    Collective. `buffers`: (name, dtype as safetensors spells it, shape, a uint8 tensor of the bytes), rank 0's. `keep`: the last so many checkpoints, and those whose step is a multiple of the second; 0: all, none. An earlier checkpoint stays loadable until this one is complete.
    """

def share_checkpoint(engine: Engine, directory: str, tag: str = "") -> str:
    """
    Collective. Brings a checkpoint's tables to the disks that lack them; returns its folder.
    """

def stack_requests() -> tuple[int, str]:
    """
    The signal at which faulthandler has to write for stall reports, and the name of its file.
    """

def why_no_cuda() -> str:
    """
    Why there is no GPU for zerorun; empty where there is one.
    """

ELSEWHERE: int = -1
EXTERNAL_OPTIMIZER: str = "external"
__version__: str = "0.2.0"
