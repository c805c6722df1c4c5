"""Named states of the random number generator, as model-parallel programs keep them."""

import contextlib
from collections.abc import Iterator

import torch

from deepspeed.accelerator import get_accelerator

MODEL_PARALLEL = "model-parallel-rng"


class CudaRNGStatesTracker:
    """Generator states by name; `fork` runs a block with one of them, on GPUs and on the host."""

    def __init__(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self.states_ = dict(states)

    def add(self, name: str, seed: int) -> None:
        """A new state, as after manual_seed(seed). ValueError for a name or seed that is there."""
        if seed in self.seeds_:
            raise ValueError(f"the seed {seed} is in use: give each state another one")
        if name in self.states_:
            raise ValueError(f"the state {name} is there already: reset() forgets all states")
        accelerator = get_accelerator()
        before = accelerator.get_rng_state()
        accelerator.manual_seed(seed)
        self.states_[name] = accelerator.get_rng_state()
        self.seeds_.add(seed)
        accelerator.set_rng_state(before)

    @contextlib.contextmanager
    def fork(self, name: str = MODEL_PARALLEL) -> Iterator[None]:
        """Random numbers inside come from the state `name`, which goes on from there next time."""
        if name not in self.states_:
            known = ", ".join(self.states_) or "none"
            raise ValueError(f"there is no state {name}, only: {known}; add(name, seed) makes one")
        accelerator = get_accelerator()
        before = accelerator.get_rng_state()
        accelerator.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = accelerator.get_rng_state()
            accelerator.set_rng_state(before)
