"""Process groups, as the program's mpu or mesh has them: without one all ranks average gradients.

With Ulysses several ranks share a sequence, with experts several hold the layers' experts together.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from zerorun import experts, sequence
from zerorun.model.engine_ranks import asked
from zerorun.process_state import STATE

mpu: Any = None  # what initialize was given
mesh_device: Any = None  # likewise, torch's DeviceMesh
expert_tensor_parallel_world_size = 1
has_secondary_partitions = False  # as the last initialize was asked for


def _forget() -> None:
    global mpu, mesh_device, has_secondary_partitions, _sequence_data_group  # noqa: PLW0603
    mpu = mesh_device = _sequence_data_group = None
    has_secondary_partitions = False


STATE.others[__name__] = _forget

_DATA = ("data_parallel", "dp", "data")
_TENSOR = ("tensor_parallel", "tp", "model_parallel", "model", "tensor")


@contextlib.contextmanager
def of_engine(its_mpu: Any, its_mesh: Any) -> Iterator[None]:
    """Answers for the engine that is made within the block, and afterwards too if it has an mpu or
    a mesh; else the engine that had one before goes on to be asked."""
    global mpu, mesh_device
    before = mpu, mesh_device
    mpu, mesh_device = its_mpu, its_mesh
    try:
        yield
    finally:
        if its_mpu is None and its_mesh is None:
            mpu, mesh_device = before


def _of_mesh(names: tuple[str, ...]) -> Any:
    dimensions = getattr(mesh_device, "mesh_dim_names", None) or ()
    found = next((name for name in dimensions if name in names), None)
    return None if found is None else mesh_device.get_group(found)


# --- data ---


_sequence_data_group: Any = None  # of ranks with the same part of different sequences


def start_sequence_data_group() -> None:
    """Makes the group of ranks that take different data, where ranks share sequences. Collective
    at the first call."""
    global _sequence_data_group  # noqa: PLW0603 - a process belongs to one job
    shared = sequence.current()
    if shared is None or shared.size == 1 or _sequence_data_group is not None:
        return
    apart = (range(part, dist.get_world_size(), shared.size) for part in range(shared.size))
    _sequence_data_group = experts.group_of_this_rank(apart)[1]


def _get_data_parallel_group() -> Any:
    found = asked(mpu, "get_data_parallel_group")
    if found is None:
        found = _of_mesh(_DATA)
    if found is None:
        found = _sequence_data_group
    return dist.group.WORLD if found is None else found


def _numbers_in(get: str) -> tuple[Callable[[], int], Callable[[], int]]:
    """Functions of a group: its size, and this rank's number in it. `get` may be replaced later."""
    return (
        lambda: dist.get_world_size(globals()[get]()),
        lambda: dist.get_rank(globals()[get]()),
    )


_get_data_parallel_world_size, _get_data_parallel_rank = _numbers_in("_get_data_parallel_group")


def _get_data_parallel_group_ranks() -> list[int]:
    return dist.get_process_group_ranks(_get_data_parallel_group())


def _get_broadcast_src_rank() -> int:
    return dist.get_global_rank(_get_sequence_data_parallel_group(), 0)


get_data_parallel_group = _get_data_parallel_group
get_data_parallel_world_size = _get_data_parallel_world_size
get_data_parallel_rank = _get_data_parallel_rank


# --- sequences ---


def _get_sequence_parallel_world_size() -> int:
    return getattr(sequence.current(), "size", 1)


def _get_sequence_parallel_rank() -> int:
    return getattr(sequence.current(), "rank", 0)


def _get_sequence_parallel_group() -> Any:
    groups = sequence.current()
    if groups is None:
        raise KeyError("No sequence parallel group found")
    return groups.group


def _get_sequence_data_parallel_group() -> Any:
    """The ranks over which states are sharded and gradients averaged."""
    found = asked(mpu, "get_sequence_data_parallel_group")
    if found is None and asked(mpu, "get_data_parallel_group") is None and _of_mesh(_DATA) is None:
        found = dist.group.WORLD
    return _get_data_parallel_group() if found is None else found


_get_sequence_data_parallel_world_size, _get_sequence_data_parallel_rank = _numbers_in(
    "_get_sequence_data_parallel_group"
)


# --- layers that ranks share ---


def get_model_parallel_group() -> Any:
    """AssertionError where every rank has the whole model."""
    found = asked(mpu, "get_model_parallel_group", "get_tensor_model_parallel_group")
    if found is None:
        found = _of_mesh(_TENSOR)
    assert found is not None, "model parallel group is not initialized"
    return found


def get_model_parallel_world_size() -> int:
    found = asked(mpu, "get_model_parallel_world_size", "get_tensor_model_parallel_world_size")
    group = _of_mesh(_TENSOR) if found is None else None
    return (found or 1) if group is None else dist.get_world_size(group)


def get_model_parallel_rank() -> int:
    if mpu is None:
        group = _of_mesh(_TENSOR)
        return 0 if group is None else dist.get_rank(group)
    names = ("tensor_model", "slice", "model")
    return asked(mpu, *(f"get_{name}_parallel_rank" for name in names)) or 0


def get_tensor_model_parallel_src_rank() -> int:
    if get_model_parallel_world_size() == 1:
        return dist.get_rank()
    return dist.get_global_rank(get_model_parallel_group(), 0)


_get_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_group = get_model_parallel_group
get_tensor_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_rank = get_model_parallel_rank


# --- experts ---


def _create_expert_and_data_parallel(
    expert_parallel_size_: int,
    mp_size: int | None = None,
    pp_size: int | None = None,
    mp_mode: str = "tp",
    use_data_before_expert_parallel_: bool = False,
    folding_spec: Any = None,
) -> None:
    """The groups ``ep_size_<size>``. Collective at the first call. NotImplementedError for those of
    ranks that share layers or have different ones."""
    if (mp_mode == "tp" and (mp_size or 1) > 1) or (pp_size or 1) > 1 or folding_spec is not None:
        raise NotImplementedError(
            f"_create_expert_and_data_parallel: mp_size={mp_size}, pp_size={pp_size} and a "
            "folding_spec are not part of zerorun: each rank that holds experts has all layers"
        )
    experts.start(expert_parallel_size_, data_first=use_data_before_expert_parallel_)


def _ensure_divisibility(numerator: int, denominator: int) -> None:
    if denominator == 0 or numerator % denominator != 0:
        raise AssertionError(f"{numerator} is not divisible by {denominator}: not a non-zero part")


def _get_expert_parallel_ranks(
    world_size: int,
    tensor_parallel_size_: int,
    expert_parallel_size_: int,
    pipeline_parallel_size_: int = 1,
    use_data_before_expert_parallel_: bool = False,
) -> tuple[list[list[int]], list[list[int]]]:
    """The ranks that hold one copy of all experts, and those that hold copies of the same ones."""
    _ensure_divisibility(world_size, tensor_parallel_size_ * pipeline_parallel_size_)
    stage = world_size // pipeline_parallel_size_
    near: list[list[int]] = []
    apart: list[list[int]] = []
    inner = expert_parallel_size_
    if use_data_before_expert_parallel_:
        inner = stage // tensor_parallel_size_ // expert_parallel_size_
    for first in range(0, world_size, stage):
        for part in range(tensor_parallel_size_):
            ranks = list(range(first + part, first + stage, tensor_parallel_size_))
            _ensure_divisibility(len(ranks), expert_parallel_size_)
            near += [ranks[begin : begin + inner] for begin in range(0, len(ranks), inner)]
            apart += [ranks[begin::inner] for begin in range(inner)]
    return (apart, near) if use_data_before_expert_parallel_ else (near, apart)


def _of_groups(get: Callable[[experts.ExpertGroups], Any]) -> Callable[[str], Any]:
    """A function of the groups' name."""
    return lambda group_name: get(experts.named(group_name, "of the program"))


def _by_name(member: str) -> Callable[[], dict[str, Any]]:
    return lambda: {name: getattr(groups, member) for name, groups in experts.known().items()}


_get_expert_parallel_group = _of_groups(lambda groups: groups.group)
_get_expert_parallel_group_ranks = _of_groups(lambda groups: list(groups.ranks))
_get_expert_parallel_world_size = _of_groups(lambda groups: groups.size)
_get_expert_parallel_rank = _of_groups(lambda groups: groups.rank)
_get_expert_parallel_src_rank = _of_groups(lambda groups: groups.ranks[0])
_get_expert_parallel_group_dict = _by_name("group")
_get_expert_data_parallel_group = _of_groups(lambda groups: groups.data_group)
_get_expert_data_parallel_group_ranks = _of_groups(lambda groups: list(groups.data_ranks))
_get_expert_data_parallel_world_size = _of_groups(lambda groups: len(groups.data_ranks))
_get_expert_data_parallel_rank = _of_groups(lambda groups: groups.data_ranks.index(dist.get_rank()))
_get_expert_data_parallel_group_dict = _by_name("data_group")
_get_expert_broadcast_src_rank = _of_groups(lambda groups: groups.data_ranks[0])


def _get_max_expert_size() -> int:
    known = experts.known()
    assert known, "expert parallel groups are not initialized"
    return max(groups.size for groups in known.values())


def _get_max_expert_size_name() -> str:
    return f"ep_size_{_get_max_expert_size()}"


def _get_max_expert_parallel_group() -> Any:
    return _get_expert_parallel_group(_get_max_expert_size_name())


def _get_expert_model_parallel_world_size() -> int:
    """An expert is whole on its ranks."""
    return expert_tensor_parallel_world_size


# --- the rest ---


def _zero_param_parallel_is_initialized() -> bool:
    """True if there are secondary partitions (zero_hpz_partition_size)."""
    return has_secondary_partitions


def initialize(ep_size: int = 1, mpu: Any = None) -> None:
    """Nothing to make without expert parallelism."""
    if ep_size != 1 or mpu is not None:
        raise NotImplementedError(
            f"deepspeed.utils.groups.initialize(ep_size={ep_size}): give the mpu to "
            "deepspeed.initialize, and ep_size to groups._create_expert_and_data_parallel(ep_size) "
            "or deepspeed.moe.layer.MoE"
        )
