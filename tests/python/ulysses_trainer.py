"""Trainer with accelerate's sequence parallelism: ulysses_trainer.py OUTPUT RANKS_PER_SEQUENCE."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

TOKENS, STEPS = 32, 4


def samples() -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(0, 64, (8, TOKENS), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :20] = -100  # a prompt, longer than one rank's part
    return [
        {"input_ids": row, "position_ids": torch.arange(TOKENS), "labels": label}
        for row, label in zip(ids, labels, strict=True)
    ]


def parallelism(size: int) -> dict[str, Any]:
    if size == 1:
        return {}
    from accelerate.utils import ParallelismConfig
    from accelerate.utils.dataclasses import DeepSpeedSequenceParallelConfig

    handler = DeepSpeedSequenceParallelConfig(
        sp_seq_length=TOKENS, sp_seq_length_is_variable=True, sp_attn_implementation="sdpa"
    )
    config = ParallelismConfig(sp_backend="deepspeed", sp_size=size, sp_handler=handler)
    return {"parallelism_config": config}


def main() -> None:
    output, size = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "sdpa"}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    arguments = TrainingArguments(
        str(output / "out"),
        use_cpu=True,
        deepspeed=dict.fromkeys((*keys, "gradient_clipping"), "auto")
        | {"zero_optimization": {"stage": 3}},
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        logging_steps=1,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=STEPS,
        per_device_eval_batch_size=1,
        train_sampling_strategy="sequential",
        disable_tqdm=True,
        **parallelism(size),
    )
    data = samples()
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:2])
    tokens: list[int] = []  # of a rank's batch, in the first layer
    layer = model.model.layers[0].mlp
    layer.register_forward_hook(lambda _module, args, _out: tokens.append(args[0].shape[1]))
    trainer.train()
    if trainer.args.process_index == 0:
        names = ("loss", "grad_norm", "eval_loss")
        log = [line[name] for name in names for line in trainer.state.log_history if name in line]
        (output / f"{size}.json").write_text(json.dumps({"log": log, "tokens": tokens[0]}))


if __name__ == "__main__":
    main()
