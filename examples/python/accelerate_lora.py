"""accelerate with peft: a script for DeepSpeed that does not mention zerorun.

accelerate wraps the prepared model and calls the wrapper, so the engine's own forward never runs.
If DeepSpeed is not installed, `import deepspeed` gives zerorun's replacement:

python -m zerorun.compat -m accelerate.commands.launch --config_file accelerate_zero3.yaml \\
    accelerate_lora.py out
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

BLOCK = 32


class Wrapped(torch.nn.Module):
    def __init__(self, lm: torch.nn.Module) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm(input_ids=tokens, labels=tokens).loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="for the adapter; it goes on with one there")
    text = Path(sysconfig.get_path("stdlib")) / "argparse.py"
    parser.add_argument("--text", type=Path, default=text, help="a text file")
    arguments = parser.parse_args()
    folder = arguments.folder
    PartialState(cpu=not torch.cuda.is_available())
    accelerator = Accelerator()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=BLOCK, n_embd=64, n_layer=2, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)
    wrapper = Wrapped(get_peft_model(GPT2LMHeadModel(config), lora))
    file = folder / "adapter.bin"
    if file.exists():
        set_peft_model_state_dict(wrapper.lm, torch.load(file, weights_only=True))

    data = arguments.text.read_bytes()[: 64 * BLOCK]
    loader = DataLoader(torch.tensor(list(data)).view(-1, BLOCK), batch_size=4, shuffle=True)
    trainable = [p for p in wrapper.lm.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=2e-2, betas=[0.9, 0.99], weight_decay=0.0)
    scheduler = CosineAnnealingLR(optimizer, eta_min=1e-6, T_max=100)
    wrapper.lm, optimizer, scheduler, loader = accelerator.prepare(
        wrapper.lm, optimizer, scheduler, loader
    )
    losses = []
    for _ in range(3):
        wrapper.lm.train()
        for batch in loader:
            with accelerator.no_sync(wrapper.lm):
                optimizer.zero_grad()
                loss = wrapper(batch)
                accelerator.backward(loss)
                optimizer.step()
            total = loss.detach().clone()
            torch.distributed.all_reduce(total)
            losses.append(total.item() / accelerator.num_processes)
        scheduler.step()
    accelerator.wait_for_everyone()
    model = accelerator.unwrap_model(wrapper.lm)
    state = accelerator.get_state_dict(wrapper.lm)
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    accelerator.save(get_peft_model_state_dict(model, state_dict=state), file)
    if accelerator.is_main_process:
        shown = " ".join(f"{loss:.6f}" for loss in losses)
        print(f"ranks {accelerator.num_processes} losses {shown}")


if __name__ == "__main__":
    main()
