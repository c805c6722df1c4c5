"""Experts on different ranks (2 x 2), against one process that has them all."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import zerorun
from torch import nn
from zerorun import consolidate, experts

from cases.models import *
from cases.parts import adamw, config, random_rows, squared_errors, train_whole, trainer

WIDTH, HIDDEN, EXPERTS, ROWS, STEPS = 12, 20, 4, 16, 6


class Exchange(torch.autograd.Function):
    """Block i of each rank goes to rank i of the group, and its gradient comes back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), group=ctx.group)
        return out, None


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    def __init__(self, chosen: list[Expert]) -> None:
        super().__init__()
        self.deepspeed_experts = nn.ModuleList(chosen)


class Mixture(nn.Module):
    """Each token goes to the best of its experts, which are on the ranks of `groups`."""

    def __init__(self, groups: experts.ExpertGroups | None = None, mark: bool = True) -> None:
        super().__init__()
        self.groups = groups
        self.into = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        everyone = [Expert() for _ in range(EXPERTS)]
        count = EXPERTS if groups is None else EXPERTS // groups.size
        first = 0 if groups is None else groups.rank * count
        self.experts = Experts(everyone[first : first + count])
        for parameter in self.experts.parameters() if groups is not None and mark else ():
            parameter.allreduce, parameter.group_name = False, groups.name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        weights = self.gate(x).softmax(-1)
        best, index = weights.max(-1)
        chosen = F.one_hot(index, EXPERTS)
        place = F.one_hot(chosen.cumsum(0).sub(1).gather(1, index[:, None])[:, 0], len(x))
        sent = (chosen[:, :, None] * place[:, None, :]).to(x.dtype)  # token, expert, place
        inputs = torch.einsum("tep,tw->epw", sent, x)
        size = 1 if self.groups is None else self.groups.size
        if size > 1:
            inputs = Exchange.apply(inputs, self.groups.group)
        own = inputs.unflatten(0, (size, -1)).unbind(1)  # of each expert here: from rank, place
        results = [
            expert(part) for expert, part in zip(self.experts.deepspeed_experts, own, strict=True)
        ]
        outputs = torch.stack(results, 1).flatten(0, 1)
        if size > 1:
            outputs = Exchange.apply(outputs, self.groups.group)
        return torch.einsum("tep,epw->tw", sent * best[:, None, None], outputs)


data_of = random_rows(700, ROWS, WIDTH)
whole_loss, own_loss = squared_errors(data_of)
train = trainer(own_loss, STEPS)


def groups(size: int = 2, **options: Any) -> experts.ExpertGroups:
    with_process_group()
    return experts.start(size, **options)


def start(stage: int, size: int = 2, seed: int = 0, **keys: Any) -> zerorun.ZeroEngine:
    torch.manual_seed(seed)
    model = Mixture(groups(size))
    zero = {"stage": stage, "stage3_param_persistence_threshold": 100, "reduce_bucket_size": 800}
    keys = {"zero_optimization": zero} | keys
    return initialize(model, adamw(model), config=config(ROWS // WORLD_SIZE, stage, **keys))[0]


def case_experts_on_different_ranks_train_like_those_of_one() -> None:
    whole = make(Mixture)
    expected = train_whole(whole, whole_loss, STEPS)
    private = {"zerorun": {"comm_timeout": 30, "share_parameters": False}}
    half = {"offload_optimizer": {"device": "cpu", "ratio": 0.5}, "reduce_bucket_size": 800}
    offloaded = {"zero_optimization": {"stage": 2} | half}
    for size, runs in (
        (2, [(0, {}), (1, {}), (2, {}), (3, {}), (3, private), (2, offloaded)]),
        (4, [(2, {}), (3, {})]),
        (1, [(2, {})]),
    ):
        for stage, keys in runs:
            engine = start(stage, size, **keys)
            assert engine.batch.train_batch_size == ROWS
            assert_close(train(engine), expected)
            here = groups(size)
            for index in range(EXPERTS // size):
                number = here.rank * (EXPERTS // size) + index
                weight = engine.module.experts.deepspeed_experts[index].up.weight
                found = zerorun.zero.safe_get_full_fp32_param(weight)
                expert = whole.experts.deepspeed_experts[number]
                torch.testing.assert_close(found, expert.up.weight, rtol=1e-4, atol=1e-5)


def case_optimizers_that_look_at_whole_tensors_know_of_experts(folder: Path) -> None:
    for kind in ("Lamb", "Muon"):
        optimizer = {"type": kind, "params": {"lr": 0.02, "weight_decay": 0.1}}
        expected, path = None, folder / kind
        for size, stage in ((1, 2), (2, 0), (2, 2), (4, 1), (2, 3)):
            model = make(lambda size=size: Mixture(groups(size)))
            keys = {"optimizer": optimizer, "gradient_clipping": 0.0}
            keys["zero_optimization"] = {"stage": stage, "reduce_bucket_size": 800}
            engine, *_ = initialize(model, config=config(ROWS // WORLD_SIZE, stage, **keys))
            found = train(engine)
            expected = expected or found
            assert_close(found, expected)
            if stage == 2:
                engine.save_checkpoint(path)
            else:
                engine.load_checkpoint(path)
                assert engine.global_steps == STEPS


def case_a_checkpoint_goes_to_another_number_of_ranks(folder: Path) -> None:
    engine = start(2, 2)
    train(engine, 2)
    engine.save_checkpoint(folder)
    expected = train(engine, 3, first=2)
    refuses("experts are on different", engine.full_state_dict)
    engine.destroy()
    whole, found = make(Mixture), consolidate.fp32_state_dict(folder)
    assert {name: v.shape for name, v in found.items()} == {
        name: v.shape for name, v in whole.state_dict().items()
    }
    for stage, size in ((3, 2), (1, 4), (2, 1)):
        engine = start(stage, size, seed=9)
        engine.load_checkpoint(folder)
        assert_close(train(engine, 3, first=2), expected, 1e-6)


def case_a_torch_optimizer_and_accumulation_know_of_experts(folder: Path) -> None:
    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def losses_of(stage: int, path: Path) -> list[float]:
        model = make(lambda: Mixture(groups()))
        keys = {"gradient_accumulation_steps": 2, "gradient_clipping": 0.0}
        settings = config(ROWS // WORLD_SIZE // 2, stage, **keys)
        engine, *_ = initialize(model, sgd(model), config=settings)
        losses = []
        for step in range(4):
            if step == 2:
                engine.save_checkpoint(path)
            x, y = (part.chunk(WORLD_SIZE)[RANK].chunk(2) for part in data_of(step))
            for half in range(2):
                loss = F.mse_loss(engine(x[half]), y[half])
                engine.backward(loss)
                engine.step()
                losses.append(mean(loss.detach(), engine))
        assert engine.load_checkpoint(path)[0] is not None
        return losses

    model = make(Mixture)
    optimizer, expected = sgd(model), []
    for step in range(4):
        optimizer.zero_grad()
        x, y = (part.unflatten(0, (WORLD_SIZE, 2, -1)) for part in data_of(step))
        for half in range(2):
            loss = F.mse_loss(model(x[:, half].flatten(0, 1)), y[:, half].flatten(0, 1))
            (loss / 2).backward()
            expected.append(loss.item())
        optimizer.step()
    for stage in (1, 3):
        assert_close(losses_of(stage, folder / str(stage)), expected)


def case_what_cannot_be_is_an_error() -> None:
    model = Mixture(groups())
    for parameter in model.experts.parameters():
        parameter.group_name = "ep_size_3"
    plain = {"train_micro_batch_size_per_gpu": 1, "zerorun": {"comm_timeout": 30}}
    refuses("no such group, only: ep_size_2", initialize, model, adamw(model), config=plain)
    uneven = Mixture(groups())
    if RANK == 1:
        last = [p for p in uneven.parameters() if experts.is_expert(p)][-1]
        del last.allreduce
    text = "and missing on rank 1: expected as many experts on each rank"
    refuses(text, initialize, uneven, adamw(uneven), config=plain)
    refuses("do not divide the job's 4", experts.start, 3)
    sharded = {"zero_optimization": {"stage": 2}}
    text = "not for a model with expert parallelism"
    refuses(text, start, 2, zerorun={"comm_timeout": 30, "shard_group_size": 2}, **sharded)
    with zerorun.zero.Init():
        model = Mixture(groups())
    refuses("without zero.Init", initialize, model, adamw(model), config=plain | sharded)
