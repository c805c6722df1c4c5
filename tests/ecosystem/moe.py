"""Mixtures of experts from transformers in a loop of DeepSpeed's, with leaf modules declared."""

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from program import Figures, trained, trained_config
from tiny import LLAMA, sequences
from transformers import AutoConfig, AutoModelForCausalLM

EXPERTS = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True},
    "qwen2": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 32,
        "output_router_logits": True,
    },
    "deepseek": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
    },
}
TYPES = {
    "mixtral": ("mixtral", "MixtralSparseMoeBlock"),
    "qwen2": ("qwen2_moe", "Qwen2MoeSparseMoeBlock"),
    "deepseek": ("deepseek_v3", "DeepseekV3MoE"),
}


def figures(given: Any) -> Figures:
    config = trained_config(given, lr=3e-3)
    torch.manual_seed(0)
    kind, block = TYPES[given.words[0]]
    shape = AutoConfig.for_model(kind, **(LLAMA | EXPERTS[given.words[0]]))
    model = AutoModelForCausalLM.from_config(shape)
    deepspeed.utils.set_z3_leaf_modules(model, [block])
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    random = torch.Generator().manual_seed(1 + dist.get_rank())

    def loss() -> torch.Tensor:
        tokens = 4 + sequences(random, 16)
        return engine(input_ids=tokens, labels=tokens).loss

    return trained(engine, 12, loss)
