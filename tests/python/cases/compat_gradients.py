"""`.grad` of an engine's parameters at stage 0, which programs log, clip, replace and clear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from deepspeed.utils import safe_get_full_grad, safe_set_full_grad
from torch import nn

from cases.compat import start
from cases.models import RANK, adamw, batch_of, loss_of, make, part_of, refuses

Change = Callable[[nn.Module], object]


def trained(change: Change, own: bool = False) -> tuple[nn.Module, list[float]]:
    """A model after three steps in which the program changes gradients. `own`: it calls the loss's
    own backward."""
    norms = []
    engine, *_ = start(0, gradient_clipping=0.0)
    for step in range(3):
        loss = loss_of(engine, part_of(batch_of(step)))
        if own:
            loss.backward()
        else:
            engine.backward(loss)
        change(engine.module)
        norms.append(norm_of(engine.module))
        engine.step()
        assert all(p.grad is None for p in engine.module.parameters())
    engine.destroy()
    return engine.module, norms


def reference(change: Change) -> tuple[nn.Module, list[float]]:
    """The same with torch alone, on the whole batch."""
    model, norms = make(), []
    optimizer = adamw(model)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, batch_of(step)).backward()
        change(model)
        norms.append(norm_of(model))
        optimizer.step()
    return model, norms


def norm_of(model: nn.Module) -> float:
    return torch.nn.utils.get_total_norm(
        [p.grad for p in model.parameters() if p.grad is not None]
    ).item()


def clip(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def replace(model: nn.Module) -> None:
    parameter = next(model.parameters())
    parameter.grad = torch.full_like(parameter, 0.01)


def leave_out(model: nn.Module) -> None:
    next(model.parameters()).grad = None


def case_what_a_program_changes_in_grad_counts_in_the_step(_folder: Path) -> None:
    for own in (False, True):
        for change in (lambda _: None, clip, replace, leave_out):
            model, norms = trained(change, own)
            expected, expected_norms = reference(change)
            assert norms == pytest.approx(expected_norms, rel=1e-4)
            # Adam makes much of a rounding where a gradient is nearly zero.
            for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
                assert (found - wanted).abs().mean() < 1e-5
            if change is leave_out:
                assert torch.equal(next(model.parameters()), next(make().parameters()))


def case_grad_is_there_from_the_end_of_a_batch_to_the_step(_folder: Path) -> None:
    engine, *_ = start(0, gradient_accumulation_steps=2)
    parameter = next(engine.module.parameters())
    for micro_step in range(4):
        engine.backward(loss_of(engine, part_of(batch_of(0))))
        assert (parameter.grad is not None) == (micro_step % 2 == 1)
        engine.step()
    engine.backward(loss_of(engine, part_of(batch_of(0))))
    engine.drop_batch()
    assert parameter.grad is None
    engine.destroy()
    parameter.grad = torch.ones_like(parameter)  # an ordinary one again
    assert torch.equal(parameter.grad, torch.ones_like(parameter))


def case_grad_and_the_functions_for_states_agree(_folder: Path) -> None:
    engine, *_ = start(0)
    parameter = next(engine.module.parameters())
    engine.backward(loss_of(engine, part_of(batch_of(0))))
    torch.testing.assert_close(parameter.grad, safe_get_full_grad(parameter))
    safe_set_full_grad(parameter, torch.ones_like(parameter))
    assert torch.equal(parameter.grad, torch.ones_like(parameter))
    parameter.grad.mul_(2)
    assert torch.equal(safe_get_full_grad(parameter), torch.full_like(parameter, 2))
    refuses(
        "was changed between two backward passes",
        lambda: engine.backward(changed_loss(engine, parameter)),
    )
    engine.destroy()


def changed_loss(engine: nn.Module, parameter: nn.Parameter) -> torch.Tensor:
    loss = loss_of(engine, part_of(batch_of(0)))
    parameter.grad = torch.zeros_like(parameter)
    return loss


def case_one_rank_alone_may_read_grad_after_a_backward_of_the_engine(_folder: Path) -> None:
    engine, *_ = start(0)
    engine.backward(loss_of(engine, part_of(batch_of(0))))
    if RANK == 0:  # to log it
        assert all(p.grad is not None for p in engine.module.parameters())
    engine.step()
    engine.destroy()


def case_grad_has_the_dtype_and_scale_of_fp16(_folder: Path) -> None:
    engine, *_ = start(0, fp16={"enabled": True, "initial_scale_power": 4})
    parameter = next(engine.module.parameters())
    engine.backward(loss_of(engine, part_of(batch_of(0))))
    assert parameter.grad.dtype == torch.float16
    unscaled = parameter.grad.float() / engine.loss_scale()
    torch.testing.assert_close(unscaled, safe_get_full_grad(parameter), rtol=2e-3, atol=1e-6)
    engine.step()
    engine.destroy()


def case_grad_is_none_from_stage_1_on(_folder: Path) -> None:
    for stage in (1, 2, 3):
        engine, *_ = start(stage)
        engine.backward(loss_of(engine, part_of(batch_of(0))))
        assert all(p.grad is None for p in engine.module.parameters())
        engine.step()
        engine.destroy()


def case_torchs_clipping_changes_nothing_from_stage_1_on(_folder: Path) -> None:
    for stage in (1, 2, 3):
        engine, *_ = start(stage, gradient_clipping=0.0)
        engine.backward(loss_of(engine, part_of(batch_of(0))))
        weight = engine.module.head.weight
        before = safe_get_full_grad(weight)
        with pytest.warns(UserWarning, match="gradient_clipping in its configuration"):
            assert torch.nn.utils.clip_grad_norm_(engine.parameters(), 1e-3).item() == 0.0
        with pytest.warns(UserWarning, match="clip_grad_value_ changes nothing"):
            torch.nn.utils.clip_grad_value_(engine.parameters(), 1e-3)
        with pytest.warns(UserWarning, match="clip_grads_with_norm_ changes nothing"):
            torch.nn.utils.clip_grads_with_norm_(engine.parameters(), 1e-3, torch.tensor(1.0))
        assert torch.equal(safe_get_full_grad(weight), before)
        engine.destroy()
