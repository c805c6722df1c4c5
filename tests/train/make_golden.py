"""Writes data/golden.safetensors: a tiny GPT-2 of Hugging Face, a batch, its loss and gradients.

Tensors: tokens and targets [2, 11] (int64), loss [1], and for each parameter `value.NAME` and
`gradient.NAME`. Run from anywhere: python tests/train/make_golden.py
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, SEQ_LEN = 2, 11


def main() -> None:
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=37,
        n_positions=13,
        n_embd=24,
        n_layer=2,
        n_head=3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    # Double precision: the reference's own rounding must not count.
    model = GPT2LMHeadModel(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than at a usual start, so that no term of a gradient is negligible, and exact
            # in fp32.
            parameter.add_(0.2 * torch.randn_like(parameter))
            parameter.copy_(parameter.float())
    tokens = torch.randint(0, config.vocab_size, (BATCH, SEQ_LEN + 1))
    tokens[1, 3:6] = tokens[0, 2]  # repeated tokens: their embedding gradients add up
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = model(inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    tensors = {
        "tokens": inputs.contiguous(),
        "targets": targets.contiguous(),
        "loss": loss.detach().float().reshape(1),
        "logits": logits.detach().float(),
    }
    for name, parameter in model.named_parameters():
        tensors[f"value.{name}"] = parameter.detach().float()
        tensors[f"gradient.{name}"] = parameter.grad.float()
    path = Path(__file__).parent / "data" / "golden.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


if __name__ == "__main__":
    main()
