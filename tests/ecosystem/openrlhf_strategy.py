"""OpenRLHF's strategy with its own configurations: an actor, a reference engine, a checkpoint."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from program import Figures, mean
from tiny import save_llama, sequences, shared_folder
from torch.distributed.device_mesh import init_device_mesh

ABSENT = {
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils": (),
    "flash_attn.utils.distributed": ("all_gather",),
}
for name, members in ABSENT.items():  # imported by OpenRLHF, used only for packed sequences
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)  # transformers looks for it
    vars(sys.modules[name]).update(dict.fromkeys(members))

from openrlhf.models import Actor, SFTLoss  # noqa: E402
from openrlhf.utils.deepspeed import DeepspeedStrategy  # noqa: E402

STEPS = 6


class OnCpu(DeepspeedStrategy):
    """OpenRLHF's own, on CPU ranks, and with torch's AdamW: DeepSpeed's would first be compiled."""

    def get_ds_train_config(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        config = super().get_ds_train_config(*arguments, **named)
        if "optimizer" in config:
            config["optimizer"]["params"]["torch_adam"] = True
        return config

    def setup_distributed(self, *_: Any, **__: Any) -> None:
        self.world_size = dist.get_world_size()
        names = ("dp", "sp", "tp")
        self.ds_device_mesh = init_device_mesh("cpu", (self.world_size, 1, 1), mesh_dim_names=names)
        self.setup_ring_attn(self.ds_device_mesh)
        whole = self.micro_train_batch_size * self.world_size
        self.accumulated_gradient = self.train_batch_size // whole


def figures(given: Any) -> Figures:
    settings = SimpleNamespace(param_dtype="bf16", adam_offload=False)
    arguments = SimpleNamespace(ds=settings, train=SimpleNamespace(), local_rank=-1)
    sizes = {"micro_train_batch_size": 2, "train_batch_size": 8}
    strategy = OnCpu(**sizes, zero_stage=given.stage, args=arguments)
    strategy.setup_distributed()
    folder = save_llama()
    shared = {"attn_implementation": "eager", "param_dtype": "bf16"}
    actor = Actor(folder, ds_config=strategy.get_ds_train_config(), **shared)
    adam = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01}
    optimizer = {"optim": "adam", "adam": adam, "max_norm": 1.0, "scheduler_steps": STEPS}
    reference = Actor(folder, ds_config=strategy.get_ds_eval_config(), **shared)
    actor, optimizer, scheduler = strategy.prepare((actor, optimizer))
    reference = strategy.prepare(reference).eval()
    assert isinstance(actor.model, deepspeed.DeepSpeedEngine)
    loss_of, random = SFTLoss(), torch.Generator().manual_seed(1 + dist.get_rank())
    found: Figures = {"loss": [], "kl": [], "grad_norm": [], "lr": []}
    checkpoints = shared_folder()
    for step in range(STEPS * strategy.accumulated_gradient):
        tokens = 4 + sequences(random, 12)
        mask = torch.ones_like(tokens)
        logs = actor(tokens, attention_mask=mask, return_logprobs=True)
        with torch.no_grad():
            base = reference(tokens, attention_mask=mask, return_logprobs=True)
        kl = (logs - base).square().mean()
        loss = loss_of(logs, mask[:, 1:]) + 0.1 * kl
        strategy.backward(loss, actor, optimizer)
        ends = actor.model.is_gradient_accumulation_boundary()
        strategy.optimizer_step(optimizer, actor, scheduler)
        found["loss"].append(mean(loss))
        found["kl"].append(mean(kl))
        if ends:
            found["grad_norm"].append(mean(strategy.get_grad_norm(actor)))
            found["lr"].append(scheduler.get_last_lr()[0])
        if step == STEPS:
            actor.model.save_checkpoint(checkpoints, tag="middle", client_state={"step": step})
    _, state = actor.model.load_checkpoint(checkpoints, tag="middle")
    with torch.no_grad():
        again = actor(tokens, attention_mask=mask, return_logprobs=True)
    found["loaded"] = [mean(again.mean()), float(state["step"])]
    return found
