"""Adapters of PEFT's kinds train on two ranks as in one process.

The base model is bf16 and its adapters are fp32, as get_peft_model makes them, at stages 2 and 3,
without activation checkpointing and with both kinds of it. The figures are the relative differences
of losses from those of PyTorch alone.
"""

import copy
import itertools
from typing import Any

import deepspeed
import peft
import torch
import torch.distributed as dist
from program import Figures, mean, plain_config
from tiny import llama
from transformers.integrations import HfDeepSpeedConfig

STEPS, ROWS, WORDS = 3, 4, 64
LINEAR = ["q_proj", "v_proj", "down_proj"]
SQUARE = ["q_proj", "o_proj"]  # kinds that share a matrix among layers need one shape

ADA = {"init_r": 6, "target_r": 3, "tfinal": 1, "total_step": 6}
VB = {"num_vectors": 16, "vector_length": 8}
IA3 = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
TOKENS = {"token_indices": [1, 5, 9], "target_modules": ["embed_tokens"]}

# By name: the configuration.
KINDS = {
    "LoRA": peft.LoraConfig(r=4, target_modules=LINEAR),
    "LoRA of all layers": peft.LoraConfig(r=4, target_modules="all-linear"),
    "DoRA": peft.LoraConfig(r=4, target_modules=LINEAR, use_dora=True),
    "AdaLoRA": peft.AdaLoraConfig(**ADA, target_modules=LINEAR),
    "VeRA": peft.VeraConfig(r=8, target_modules=SQUARE),
    "RandLora": peft.RandLoraConfig(r=4, target_modules=SQUARE),
    "LN tuning": peft.LNTuningConfig(),
    "VBLoRA": peft.VBLoRAConfig(r=4, **VB, target_modules=SQUARE),
    "IA3": peft.IA3Config(**IA3),
    "prompt": peft.PromptTuningConfig(num_virtual_tokens=4),
    "prefix": peft.PrefixTuningConfig(num_virtual_tokens=4),
    "p-tuning": peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=32),
    "LoHa": peft.LoHaConfig(r=4, target_modules=LINEAR),
    "LoKr": peft.LoKrConfig(r=4, target_modules=LINEAR),
    "OFT": peft.OFTConfig(oft_block_size=8, target_modules=LINEAR),
    "BOFT": peft.BOFTConfig(boft_block_size=8, target_modules=["q_proj"]),
    "HRA": peft.HRAConfig(r=4, target_modules=LINEAR),
    "MiSS": peft.MissConfig(r=4, target_modules=SQUARE),
    "SHiRA": peft.ShiraConfig(r=2, target_modules=SQUARE),
    "FourierFT": peft.FourierFTConfig(n_frequency=20, target_modules=LINEAR),
    "trainable tokens": peft.TrainableTokensConfig(**TOKENS),
}
CHECKPOINTING = {"none": None, "reentrant": True, "not reentrant": False}


def adapted(kind: str, reentrant: bool | None = None) -> Any:
    """The same on every rank; adapters begin away from zero."""
    model = llama(num_key_value_heads=4, use_cache=False).to(torch.bfloat16)
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    config = copy.deepcopy(KINDS[kind])
    config.task_type = "CAUSAL_LM"
    torch.manual_seed(1)
    model = peft.get_peft_model(model, config)
    for parameter in trained(model):
        parameter.data += 0.02 * torch.randn(parameter.shape).to(parameter.dtype)
    return model.train()


def trained(model: Any) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def losses_of(kind: str, stage: int | None = None, reentrant: bool | None = None) -> list[float]:
    """Of all ranks at a stage, or of one process with PyTorch alone."""
    model = adapted(kind, reentrant)
    optimizer = torch.optim.AdamW(trained(model), lr=1e-2)
    engine, parts, part = model, 1, 0
    if stage is not None:
        parts, part = dist.get_world_size(), dist.get_rank()
        config = plain_config(stage, False, train_micro_batch_size_per_gpu=ROWS // parts)
        config["gradient_clipping"] = 0
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        _kept = HfDeepSpeedConfig(config)  # by which PEFT knows at stage 3 that it has to gather
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(1, WORDS, (ROWS, 12), generator=generator).chunk(parts)[part]
        loss = engine(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        if stage is None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            engine.backward(loss)
            engine.step()
        losses.append(mean(loss))
    if stage is not None:
        engine.destroy()
    return losses


def figures(_given: Any) -> Figures:
    torch.set_num_threads(1)
    found = {}
    for kind in KINDS:
        expected = losses_of(kind)
        for stage, (name, reentrant) in itertools.product((2, 3), CHECKPOINTING.items()):
            if kind == "prefix" and reentrant is not None:
                continue  # PEFT refuses it
            pairs = zip(losses_of(kind, stage, reentrant), expected, strict=True)
            found[f"{kind}, stage {stage}, {name}"] = [abs(a - b) / b for a, b in pairs]
    return found
