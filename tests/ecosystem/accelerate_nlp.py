"""accelerate's examples of DeepSpeed: text classification, with DeepSpeed's optimizer and schedule.

It is trained, evaluated with `gather_for_metrics`, saved, trained on, loaded and evaluated again.
"""

from typing import Any

import torch
from accelerate import Accelerator, DeepSpeedPlugin, PartialState
from accelerate.utils import DummyOptim, DummyScheduler, set_seed
from program import Figures, mean, scheduled_config
from tiny import bert, shared_folder
from torch.utils.data import DataLoader

STEPS = 8


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    words = torch.randint(0, 64, (count, 12), generator=random)
    label = (words % 2).sum(1) > 6
    return [{"input_ids": w, "labels": n} for w, n in zip(words, label.long(), strict=True)]


def evaluate(accelerator: Accelerator, model: Any, loader: Any) -> float:
    model.eval()
    losses = []
    for batch in loader:
        with torch.no_grad():
            logits = model(**batch).logits.float()
        each = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
        losses.append(accelerator.gather_for_metrics(each))
    return torch.cat(losses).mean().item()


def figures(given: Any) -> Figures:
    PartialState(cpu=True)
    warmup = "warmup_min_lr warmup_max_lr warmup_num_steps total_num_steps"
    config = scheduled_config(given.stage, "lr weight_decay", "WarmupDecayLR", warmup)
    accelerator = Accelerator(
        mixed_precision="bf16" if given.bf16 else "no",
        gradient_accumulation_steps=2,
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
    )
    set_seed(0)
    model = bert()
    optimizer = DummyOptim(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = DummyScheduler(optimizer, total_num_steps=STEPS, warmup_num_steps=2)
    loader = DataLoader(sentences(8 * STEPS), batch_size=2, shuffle=True)
    held_out = DataLoader(sentences(18), batch_size=4)
    given = model, optimizer, loader, held_out, schedule
    model, optimizer, loader, held_out, schedule = accelerator.prepare(*given)
    found: Figures = {"loss": [], "grad_norm": [], "eval_loss": []}
    folder = shared_folder()
    for step, batch in enumerate(loader):
        if step == STEPS:
            accelerator.save_state(folder)
            found["eval_loss"].append(evaluate(accelerator, model, held_out))
        model.train()
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                found["grad_norm"].append(mean(norm))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        found["loss"].append(mean(loss))
    found["eval_loss"].append(evaluate(accelerator, model, held_out))
    accelerator.load_state(folder)
    found["eval_loss"].append(evaluate(accelerator, model, held_out))
    return found
