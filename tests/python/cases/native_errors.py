"""Arguments of zerorun.shard that cannot be: which errors say so."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import zerorun
from torch import nn

from cases.models import WORLD_SIZE, adamw, make, raises

AdamW = functools.partial(torch.optim.AdamW, lr=1e-2)


def case_contradictions_are_value_errors(_folder: Path) -> None:
    model = make()

    def refused(text: str, **keywords: object) -> None:
        raises(ValueError, text, lambda: zerorun.shard(model, **keywords))

    refused("shard: stage: got 4, expected an integer from 0 to 3", stage=4)
    refused('shard: stage: got "3", expected an integer from 0 to 3; remove', stage="3")
    refused("shard: stage: got None, expected a number", stage=None)
    refused("shard: clip: got -1, expected a number of at least 0", clip=-1.0)
    refused("shard: clip: got <class 'torch.Tensor'>, expected", clip=torch.ones(1))
    refused("shard: accumulation_steps: got 0, expected an integer", accumulation_steps=0)
    refused("shard: timeout: got None", timeout=None)
    refused("shard: timeout: got 0, expected a number above 0", timeout=0.0)
    refused("shard: shard_group_size: got -1, expected", shard_group_size=-1)
    refused(f"shard_group_size: got {WORLD_SIZE + 1} for", shard_group_size=WORLD_SIZE + 1)
    refused('"cpu" needs stage 1, 2 or 3, got 0', stage=0, offload_optimizer="cpu")
    refused('shard: offload_params: "cpu" needs stage 3', stage=2, offload_params="cpu")
    refused("shard: offload_params: got <class 'bool'>, expected \"cpu\" or", offload_params=True)
    refused(
        'offload_optimizer no/such: No such file or directory; expected "cpu" or a folder',
        optimizer=AdamW,
        offload_optimizer="no/such",
    )
    refused("units: got no choice", units=[])
    refused("shard: init: got <class 'int'>, expected a function of a module", init=5)
    refused("shard: weights: got <class 'list'>, expected a mapping", weights=[1])
    refused("dtype=torch.int8", dtype=torch.int8)
    refused("reduce_dtype=torch.float64", reduce_dtype=torch.float64)
    refused("units: 'Blok' is met by no module", units="Blok")
    refused("units: got 5, expected a class of modules", units=5)
    refused("optimizer: got <class 'list'>, expected a torch optimizer", optimizer=[])
    refused("units: <class 'torch.nn.modules.conv.Conv2d'> is met by no", units=[nn.Conv2d])
    refused("units: got 3, expected", units=[3])
    refused("init and weights are for a model on the meta device", weights={})
    raises(ValueError, "expected a torch.nn.Module", lambda: zerorun.shard("model"))
    raises(
        ValueError,
        "call model.float() before",
        lambda: zerorun.shard(make().half(), dtype=torch.float32),
    )
    engine = zerorun.shard(model, optimizer=AdamW)  # the errors left the model alone
    raises(OSError, "/dev/null", lambda: engine.save_checkpoint("/dev/null/checkpoints"))
    engine.destroy()


def case_inner_parts_of_an_engine_warn_unless_the_model_has_them(_folder: Path) -> None:
    model = make()
    engine = zerorun.shard(model, optimizer=adamw(model))
    with pytest.warns(DeprecationWarning, match="engine.core is an inner part"):
        assert engine.core is engine._core
    model.policy = "of the program"
    assert engine.policy == "of the program"
    engine.destroy()
