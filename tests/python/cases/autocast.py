"""torch.autocast around models whose parameters come and go."""

import warnings
from collections.abc import Callable

import torch
import zerorun
from torch import nn
from torch.utils.checkpoint import checkpoint

from cases.models import *


def case_autocast_leaves_no_weights_between_forward_and_backward() -> None:
    """At stage 3 what autograd saves of the weights has memory while their unit is gathered."""

    class Opening(nn.Module):
        """Opens autocast itself, from its second forward on."""

        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(64, 64)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.calls > 1):
                return self.up(x).float()

    def linears() -> nn.Module:
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    def opening() -> nn.Module:
        return nn.Sequential(*(Opening() for _ in range(4)))

    def held(model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor]) -> int:
        """Bytes that autograd has saved, but for inputs."""
        saved: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.shape[0] == 64:
                saved[id(tensor.untyped_storage())] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = call(torch.ones(2, 64, device=DEVICE)).square().mean()
        found = {storage.data_ptr(): storage.nbytes() for storage in saved.values()}
        kept = sum(found.values())
        loss.backward()
        assert all(p.numel() == 0 for p in model.parameters())
        return kept

    for keys in (AUTOCAST, {}):
        model, engine = started(config(3, **keys), linears)

        def call(tokens: torch.Tensor, engine: zerorun.ZeroEngine = engine) -> torch.Tensor:
            with torch.autocast(DEVICE.type, torch.bfloat16):
                return engine(tokens)

        assert held(model, call) == 0
        engine.step()
    model, engine = started(config(3), opening)
    for autocast in (False, True, True):
        kept = held(model, engine)  # without autocast these are views of the unit's memory
        assert kept == 0 or not autocast
        engine.step()


def case_autocast_gives_the_same_numbers_at_all_stages() -> None:
    """Also where a module is called twice, recomputes its forward, or is compiled."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()
            self.shared = nn.Linear(32, 32)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            hidden = self.inner.embedding(tokens)
            for index, block in enumerate(self.inner.blocks):
                again = checkpoint(block, hidden, use_reentrant=False) if index else block(hidden)
                hidden = self.shared(again) + again
            return self.inner.head(self.shared(hidden))

    found = []
    for stage in (1, *((3, 3) if len(STAGES) > 1 else (3,))):
        _, engine = started(config(stage, **AUTOCAST), Twice)
        losses = []
        for step in range(3):
            loss = loss_of(engine, part_of(batch_of(step)))
            with torch.no_grad():
                assert torch.equal(loss_of(engine, part_of(batch_of(step))), loss)
            engine.backward(loss)
            norm = engine.get_global_grad_norm()
            engine.step()
            losses += [mean(loss.detach(), engine), norm, engine.get_global_grad_norm()]
        found.append((losses, engine._core.parameter_hash()))
    assert all(each == found[0] for each in found)


def case_hooks_and_compiled_models_see_parameters_under_autocast() -> None:
    """A copy is for the product alone: pre-hooks compute weights, compiled code casts itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler itself, and of weight_norm's age
        compare_stages_under_autocast()


def compare_stages_under_autocast() -> None:
    def normed() -> nn.Module:
        layers = nn.Linear(16, 16), nn.Linear(16, 16)
        torch.nn.utils.spectral_norm(layers[1])
        return nn.Sequential(torch.nn.utils.weight_norm(layers[0]), nn.ReLU(), layers[1])

    def compiled() -> nn.Module:
        torch._dynamo.reset()
        model = make()
        model.compile(backend="aot_eager")
        return model

    for build in (normed, compiled):
        found = []
        for stage in (1, 3):
            model = make(build) if build is normed else build()
            zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
            settings = config(stage, zero_optimization=zero, **AUTOCAST)
            engine, *_ = initialize(model, adamw(model), config=settings)
            for step in range(2):
                if build is normed:
                    inputs = torch.full((2, 16), 1.0 + step, device=DEVICE)
                    loss = engine(inputs).float().square().mean()
                else:
                    loss = loss_of(engine, part_of(batch_of(step)))
                engine.backward(loss)
                engine.step()
                found.append((stage, mean(loss.detach(), engine), engine.get_global_grad_norm()))
        assert [each[1:] for each in found[:2]] == [each[1:] for each in found[2:]], found
