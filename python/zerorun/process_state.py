"""All that a process keeps beside its engines: a process belongs to one job."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ProcessState:
    """What modules of the package share between calls. More is kept by those who know it: external
    parameters for as long as their modules (hooks.shared_unit), which hooks want to be told of
    autocast for as long as their engines (hooks.module_call), and for good what is replaced in
    PyTorch (torch_seam) and what does not change in a process (functools.cache)."""

    world: Any = None  # communicator.world(): the communicator of all ranks
    data: dict[tuple[int, ...], Any] = field(default_factory=dict)  # engine_ranks.data_communicator
    sequence: Any = None  # sequence.start(): the ranks that share a sequence
    experts: dict[str, Any] = field(default_factory=dict)  # experts.start(): groups by name
    inits: list[Any] = field(default_factory=list)  # the blocks of zero.Init that have begun
    writes: Any = None  # what constructors within these blocks change
    moved_nbytes: int = 0  # host_memory.moved() since memory was last given back
    flops: list[Any] = field(default_factory=list)  # flops.listen(): who counts them
    copies: Any = None  # optimizers.saved_values: engines and steps of what get_state_dict gave
    # Of comms_logger, in the order of their engines, which is that of all ranks.
    tables: weakref.WeakValueDictionary[int, Any] = field(
        default_factory=weakref.WeakValueDictionary
    )
    savers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)  # of background_saver
    # Those of the stand-in for DeepSpeed, whose names are attributes of its modules.
    others: dict[str, Callable[[], None]] = field(default_factory=dict)


STATE = ProcessState()


def reset() -> None:
    """Forgets all of it, for a process that goes on to another job: no engine may be left, and
    every rank has to do it. Groups of torch's are torch's to destroy."""
    others = STATE.others
    for forget in others.values():
        forget()
    STATE.__init__(others=others)  # type: ignore[misc]
