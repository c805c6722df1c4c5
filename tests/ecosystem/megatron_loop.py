"""Megatron-DeepSpeed's configuration and training step: its mpu, a schedule that counts samples,
`step(lr_kwargs=...)`, activation checkpointing of DeepSpeed's, a checkpoint with its state."""

from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from program import Figures, mean, plain_config
from tied_model import Block
from tiny import WORDS, sequences, shared_folder
from torch import nn

BATCH = 16


def mpu() -> Any:
    """megatron.core.parallel_state of a job without model parallelism."""
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    model = {"rank": 0, "world_size": 1, "group": alone[dist.get_rank()]}
    data = {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "group": dist.new_group()}
    answers = {"tensor_model_parallel_src_rank": dist.get_rank()}
    for kind, found in (("model", model), ("tensor_model", model), ("data", data)):
        answers |= {f"{kind}_parallel_{name}": value for name, value in found.items()}
    return SimpleNamespace(**{f"get_{name}": lambda v=value: v for name, value in answers.items()})


class Gpt(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = deepspeed.checkpointing.checkpoint(layer, x)
        return F.linear(self.norm(x), self.embedding.weight)


class Schedule:
    """As Megatron's OptimizerParamScheduler: of samples, for learning rate and weight decay."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.num_steps = optimizer, 0
        self.step(0)

    def step(self, increment: int) -> None:
        self.num_steps += increment
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (self.num_steps + BATCH) / (4 * BATCH))
            group["weight_decay"] = 0.1 * group["wd_mult"]

    def state_dict(self) -> dict[str, int]:
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_steps = state["num_steps"]
        self.step(0)


def configuration(given: Any) -> dict[str, Any]:
    """As examples_deepspeed/ of Megatron-DeepSpeed write it."""
    own = {"train_batch_size": BATCH, "zero_allow_untested_optimizer": True}
    own |= {"prescale_gradients": False, "wall_clock_breakdown": False}
    own["data_types"] = {"grad_accum_dtype": "fp32"}
    own["fp16"] = {"enabled": False, "loss_scale": 0, "hysteresis": 2, "initial_scale_power": 11}
    return plain_config(given.stage, given.bf16, **own)


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Without weight decay for what has one dimension, at stage 3, too."""
    kept = [p for p in model.parameters() if len(getattr(p, "ds_shape", p.shape)) == 1]
    known = {id(p) for p in kept}
    decayed = [p for p in model.parameters() if id(p) not in known]
    return [{"params": decayed, "wd_mult": 1.0}, {"params": kept, "wd_mult": 0.0}]


def figures(given: Any) -> Figures:
    parallel = mpu()
    config = configuration(given)
    deepspeed.checkpointing.configure(
        parallel, partition_activations=False, contiguous_checkpointing=False, num_checkpoints=3
    )
    torch.manual_seed(0)
    with deepspeed.zero.Init(
        data_parallel_group=parallel.get_data_parallel_group(),
        config_dict_or_path=config,
        enabled=given.stage == 3,
        mpu=parallel,
    ):
        module = Gpt()
    optimizer = torch.optim.AdamW(groups_of(module), lr=1e-3, betas=(0.9, 0.95))
    model, optimizer, _, schedule = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        args=given,
        lr_scheduler=Schedule(optimizer),
        mpu=parallel,
        config=config,
    )
    found: Figures = {name: [] for name in ("loss", "grad_norm", "lr", "applied")}
    random = torch.Generator().manual_seed(1 + dist.get_rank())

    def train(steps: int) -> None:
        for _ in range(steps):
            for micro in range(1, model.gradient_accumulation_steps() + 1):
                tokens = sequences(random, 12)
                logits = model(tokens[:, :-1]).float().flatten(0, 1)
                loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
                model.backward(loss)
                found["loss"].append(mean(loss))
                last = micro == model.gradient_accumulation_steps()
                model.step(lr_kwargs={"increment": model.train_batch_size()} if last else None)
            found["grad_norm"].append(mean(model.get_global_grad_norm()))
            found["lr"].append(optimizer.param_groups[0]["lr"])
            found["applied"].append(float(model.was_step_applied()))

    folder = shared_folder()
    train(3)
    state = {"iteration": 3, "checkpoint_version": 3.0, "args": {"seed": 0}}
    model.save_checkpoint(folder, client_state=state)
    train(2)
    _, state = model.load_checkpoint(folder)
    found["state"] = [float(state["iteration"]), float(schedule.num_steps)]
    train(2)
    return found
