"""The pattern of transformers' run_glue.py: a parser for the command line of Trainer, evaluation
and saving at every fourth step with a limit of checkpoints, the best model, predictions."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from program import Figures, history, scheduled_config
from tiny import bert, shared_folder
from transformers import HfArgumentParser, Trainer, TrainingArguments

OPTIONS = """--use_cpu --do_train --do_eval --do_predict --max_steps 12 --learning_rate 2e-3
    --per_device_train_batch_size 4 --per_device_eval_batch_size 4 --warmup_steps 3
    --gradient_accumulation_steps 2 --gradient_checkpointing --max_grad_norm 0.7
    --weight_decay 0.05 --eval_strategy steps --eval_steps 4 --save_strategy steps --save_steps 4
    --save_total_limit 2 --load_best_model_at_end --metric_for_best_model eval_loss
    --logging_steps 1 --report_to none --disable_tqdm true --dataloader_pin_memory false"""


@dataclass
class ModelArguments:
    """What such a program adds."""

    labels: int = 2


def sentences(first: int, count: int) -> list[dict[str, Any]]:
    """Words that follow each other by a rule; the first one's parity is the label."""
    found = []
    for word in (at * 7 % 60 for at in range(first, first + count)):
        words = [4 + (word + (1 + word % 5) * at) % 60 for at in range(8)]
        found.append({"input_ids": words, "labels": word % 2})
    return found


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(found.predictions, 1) == found.label_ids).mean())}


def figures(given: Any) -> Figures:
    folder = Path(shared_folder())
    config = folder / "ds_config.json"
    warmup = "warmup_min_lr warmup_max_lr warmup_num_steps"
    settings = scheduled_config(given.stage, "lr betas eps weight_decay", "WarmupLR", warmup)
    config.write_text(json.dumps(settings))
    options = [*OPTIONS.split(), "--output_dir", str(folder / "out"), "--deepspeed", str(config)]
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    own, arguments = parser.parse_args_into_dataclasses(options)
    trainer = Trainer(
        model=bert(num_labels=own.labels),
        args=arguments,
        train_dataset=sentences(0, 64),
        eval_dataset=sentences(100, 17),  # not a multiple of the ranks
        compute_metrics=accuracy,
    )
    trainer.train()
    found = history(trainer, ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy"))
    found["best"] = [trainer.state.best_metric, trainer.evaluate()["eval_loss"]]
    predicted = trainer.predict(sentences(200, 13))
    found["predicted"] = predicted.predictions.astype(float).ravel().tolist()
    dist.barrier()
    kept = (folder / "out").glob("checkpoint-*")
    found["kept"] = sorted(float(path.name.rpartition("-")[2]) for path in kept)
    return found
