"""Gradients of a batch that come late, go to another engine, or are a program's own."""

import copy

import torch
from torch import nn

from cases.models import *


def player() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 5))


def case_a_models_zero_grad_forgets_another_engines_loss() -> None:
    def play(settings: dict[str, object] | None) -> list[float]:
        if settings is None:
            generator, judge = make(player, seed=1), make(player, seed=2)
            making, judging = adamw(generator), adamw(judge)
        else:
            generator, making = started(settings, player, seed=1)
            judge, judging = started(settings, player, seed=2)
        losses = []
        for step in range(6):
            noise = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
            noise = part_of(noise) if settings else noise
            judge.zero_grad()
            made = generator(noise)
            error = (judge(made.detach()) - noise).square().mean()
            error.backward()
            judging.step()
            generator.zero_grad()
            fooled = judge(made).square().mean()
            fooled.backward()
            making.step()
            loss = error + fooled
            losses.append(mean(loss, making) if settings else loss.item())
        return losses

    expected = play(None)
    for stage in STAGES:
        assert_close(play(config(stage, gradient_clipping=0.0)), expected)


def case_a_copy_of_a_model_forgets_gradients_of_its_own() -> None:
    model, engine = started(config(STAGES[0]), player)
    engine.backward(model(torch.ones(1, 5)).sum())
    copied = copy.deepcopy(model)
    copied(torch.ones(1, 5)).sum().backward()
    copied.zero_grad()
    assert all(parameter.grad is None for parameter in copied.parameters())
    engine.step()
    assert engine.global_steps == 1  # the engine has kept its gradients
    engine.destroy()
    assert "zero_grad" not in vars(model)


def case_an_unused_pooler_holds_no_gradients_back() -> None:
    class Pooled(Model):
        """With a part whose result goes nowhere."""

        def __init__(self) -> None:
            super().__init__()
            self.pooler = nn.Linear(32, 32)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            self.pooler(self.embedding(tokens)[:, 0])
            return super().forward(tokens)

    for stage in (3,) if PRIVATE_MEMORY else (2, 3):
        model, engine = started(config(stage), Pooled)
        planned = engine._core.memory_use()["buckets"]
        if PRIVATE_MEMORY:  # gathered parameters are in memory of the rank's own then, here all
            planned += sum(parameter.ds_numel * 4 for parameter in model.parameters())
        peaks: list[int] = []

        def look(_parameter: nn.Parameter) -> None:
            peaks[-1] = max(peaks[-1], engine._core.memory_use()["buckets"])

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(look)
        for step in range(3):
            peaks.append(0)
            train(engine, 1, first=step)
        # At stage 2 buckets wait for the pooler once, in memory of their own. At stage 3 it shares
        # its bucket with the embeddings, which is the last one anyway.
        assert stage == 3 or peaks[0] > 1.03 * planned
        assert max(peaks[1:]) <= 1.03 * planned


def case_hooks_find_the_gradient_of_this_rank() -> None:
    for stage in STAGES:
        torch.manual_seed(0)
        model = nn.Linear(4, 1, bias=False)
        engine, *_ = initialize(model, sgd(model), config=config(stage))
        found: list[torch.Tensor] = []

        def look(parameter: nn.Parameter, found=found) -> None:
            found.append(parameter.grad.clone())
            parameter.grad.mul_(2.0)

        handle = model.weight.register_post_accumulate_grad_hook(look)
        engine.backward(engine(torch.full((2, 4), RANK + 1.0, device=DEVICE)).sum())
        assert torch.equal(found[0].cpu(), torch.full((1, 4), 2.0 * (RANK + 1)))
        handle.remove()
        mean = sum(4.0 * (rank + 1) for rank in range(WORLD_SIZE)) / WORLD_SIZE
        gradient = safe_get_full_grad(model.weight)
        assert torch.equal(gradient.cpu(), torch.full((1, 4), mean))
        engine.step()
