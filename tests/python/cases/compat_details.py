"""What programs that use DeepSpeed's smaller interfaces meet, one case each."""

from __future__ import annotations

import functools
from pathlib import Path
from unittest.mock import patch

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param

from cases.compat import start
from cases.models import raises, train


def _own_section() -> tuple[type, type]:
    """What a program derives: the class and its base."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    class Inner(DeepSpeedConfigModel):
        sizes: list = []  # noqa: RUF012 - each model has its own

    class Own(Inner):
        name: str
        enabled: bool = False

    return Own, DeepSpeedConfigModel


def case_programs_derive_sections_without_pydantic(_folder: Path) -> None:
    from deepspeed.runtime._program_models import program_model

    program_model.cache_clear()
    with patch("importlib.util.find_spec", return_value=None):
        own, base = _own_section()
    program_model.cache_clear()
    first, second = own(name="a", enabled=True), own(name="b")
    first.sizes.append(1)
    assert first.model_dump() == {"sizes": [1], "name": "a", "enabled": True}
    assert second.sizes == []
    assert isinstance(first, base)
    raises(ValueError, "missing ['name']", own)
    raises(ValueError, "unknown ['nam']", lambda: own(name="a", nam="b"))


def case_programs_derive_sections_that_are_pydantics_models(_folder: Path) -> None:
    try:
        import pydantic
    except ImportError:
        return
    own, base = _own_section()

    class Renamed(base):
        before: str = pydantic.Field(
            "", json_schema_extra={"deprecated": True, "new_param": "after", "new_param_fn": list}
        )
        after: list = []  # noqa: RUF012
        count: int = pydantic.Field(2, alias="number")

    model = own(name="a", enabled="yes", sizes="auto")
    assert model.model_dump() == {"sizes": [], "name": "a", "enabled": True}
    assert issubclass(own, pydantic.BaseModel)
    assert issubclass(own, base)
    assert isinstance(model, base)
    assert not issubclass(pydantic.BaseModel, base)
    for wrong in ({}, {"name": "a", "nam": "b"}, {"name": []}):
        raises(pydantic.ValidationError, "Own", functools.partial(own, **wrong))
    assert Renamed(before="xy").after == ["x", "y"]
    assert (Renamed(number=5).count, Renamed(count=6).count, Renamed().after) == (5, 6, [])
    raises(AssertionError, "together", lambda: Renamed(before="x", after=[]))


def _groups(*rates: float) -> torch.optim.Optimizer:
    """An optimizer with a group of each rate."""
    return torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    )


def case_a_schedule_takes_rates_of_its_groups(_folder: Path) -> None:
    schedules = deepspeed.runtime.lr_schedules
    warmup = schedules.WarmupLR(_groups(0.5, 0.25), warmup_num_steps=4)
    assert (warmup.max_lrs, warmup.get_last_lr()) == ([0.5, 0.25], [0, 0])
    warmup.step(4)
    assert warmup.get_lr() == [0.5, 0.25]
    decay = schedules.WarmupDecayLR(_groups(0.5), total_num_steps=9, warmup_num_steps=3)
    assert decay.max_lrs == [0.001]
    cosine = schedules.WarmupCosineLR(_groups(0.5), total_num_steps=9, warmup_num_steps=3)
    assert cosine.get_last_lr() == [0]
    raises(ValueError, "warmup_num_steps", lambda: schedules.WarmupLR(_groups(1), 0, 1, None))


def case_masters_of_stage_0_have_their_names(_folder: Path) -> None:
    engine, optimizer, *_ = start(0, bf16={"enabled": True})
    train(engine, 2)
    (flat,) = optimizer.fp32_groups_flat
    (whole,) = optimizer.fp32_groups
    assert torch.equal(flat, torch.cat([master.flatten() for master in whole]))
    for parameter, master in zip(engine.module.parameters(), whole, strict=True):
        assert torch.equal(master, safe_get_full_fp32_param(parameter))
    engine.destroy()
    for stage, section in ((0, {}), (1, {"bf16": {"enabled": True}})):
        engine, optimizer, *_ = start(stage, **section)
        assert not hasattr(optimizer, "fp32_groups_flat")
        engine.destroy()
