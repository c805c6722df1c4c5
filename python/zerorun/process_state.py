"""All that a process keeps beside its engines: a process belongs to one job."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ProcessState:
    """What modules of the package share between calls. Two things more are kept, by those who know
    them: external parameters, with their modules (hooks.shared_unit), and patches of PyTorch, which
    stay (torch_seam lists them)."""

    world: Any = None  # communicator.world(): the communicator of all ranks
    sequence: Any = None  # sequence.start(): the ranks that share a sequence
    experts: dict[str, Any] = field(default_factory=dict)  # experts.start(): groups by name
    inits: list[Any] = field(default_factory=list)  # the blocks of zero.Init that have begun
    moved_nbytes: int = 0  # host_memory.moved() since memory was last given back
    tables: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)  # of comms_logger
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
