"""Mixtures of experts from transformers in a loop of DeepSpeed's, with leaf modules declared."""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist
from program import mean, start, trained_config, write
from tiny import LLAMA, WORDS
from transformers import AutoConfig, AutoModelForCausalLM

EXPERTS = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 32,
        "output_router_logits": True,
    },
    "deepseek_v3": {
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
BLOCKS = {
    "mixtral": "MixtralSparseMoeBlock",
    "qwen2_moe": "Qwen2MoeSparseMoeBlock",
    "deepseek_v3": "DeepseekV3MoE",
}


def main() -> None:
    given = start()
    config = trained_config(given, lr=3e-3)
    torch.manual_seed(0)
    shape = AutoConfig.for_model(given.model, **(LLAMA | EXPERTS[given.model]))
    model = AutoModelForCausalLM.from_config(shape)
    deepspeed.utils.set_z3_leaf_modules(model, [BLOCKS[given.model]])
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    random = torch.Generator().manual_seed(1 + dist.get_rank())
    figures: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for _ in range(12):
        first = torch.randint(0, WORDS, (2, 1), generator=random)
        tokens = 4 + (first + 3 * torch.arange(16)) % WORDS
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        ends = engine.is_gradient_accumulation_boundary()
        engine.step()
        figures["loss"].append(mean(loss))
        if ends:
            figures["grad_norm"].append(mean(engine.get_global_grad_norm()))
    write(given, figures)


if __name__ == "__main__":
    main()
