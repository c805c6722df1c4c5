"""The bundled train program and Hugging Face's transformers agree on a model, both ways.

The environment variable ZERORUN_TRAIN names another executable than the release build's.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import output_of

DEADLINE = 120
PROMPT = "def main(argv):"
TOLERANCE = 1e-4


def run(folder, *command):
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    return output_of(*command, cwd=folder, env=own, timeout=DEADLINE)


@pytest.fixture(scope="module")
def program(build):
    path = Path(os.environ.get("ZERORUN_TRAIN") or build / "libexec" / "zerorun" / "train")
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} does not exist: build it, or set ZERORUN_TRAIN")
    return path


@pytest.fixture(scope="module")
def train(program):
    """The program as a single rank."""
    return lambda folder, *arguments: run(folder, program, *arguments)


@pytest.fixture(scope="module")
def launched(program, zerorun):
    """The program as two ranks of the launcher."""
    launcher = (zerorun, "--accelerator", "cpu", "--num_gpus", 2)
    return lambda folder, *arguments: run(folder, *launcher, program, *arguments)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Options that name a text and a small model."""
    folder = tmp_path_factory.mktemp("job")
    text = "".join(f"def f{i}(x):\n    return x + {i * i}\n" for i in range(400))
    (folder / "text").write_text(text)
    shape = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
    (folder / "model.json").write_text(json.dumps(shape))
    return ("--data", folder / "text", "--model", folder / "model.json")


def train_logits(train, folder, init, dtype="fp32"):
    train(
        *(folder, "--init", init, "--steps", 0, "--save=", "--dtype", dtype, "--sample", PROMPT),
        *("--sample_tokens", 1, "--logits", "logits.bin"),
    )
    return np.fromfile(folder / "logits.bin", dtype=np.float32).reshape(len(PROMPT), -1)


def hf_logits(model):
    with torch.no_grad():
        return model(torch.tensor([list(PROMPT.encode())])).logits[0].numpy()


@pytest.mark.parametrize(("dtype", "stage"), [("fp32", 2), ("bf16", 3), ("fp16", 2)])
def test_transformers_loads_what_two_ranks_saved(launched, job, tmp_path, dtype, stage):
    from transformers import GPT2LMHeadModel  # seconds, which only the process of this file has

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
        "bf16": {"enabled": dtype == "bf16"},
        "fp16": {"enabled": dtype == "fp16", "hysteresis": 1},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    output = launched(
        tmp_path,
        *("--config", "config.json", *job, "--steps", 30),
        *("--save", "saved", "--metrics", "metrics.jsonl", "--sample", "def "),
    )
    assert "sample:\ndef " in output
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines[1:-1]]
    assert len(losses) == 30
    assert losses[-1] < 0.75 * losses[0]
    assert len(lines[-1]["param_hash"]) == 16

    model, info = GPT2LMHeadModel.from_pretrained(
        tmp_path / "saved", dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    assert model.config.vocab_size == 256
    expected = hf_logits(model)
    assert np.abs(expected).max() > 1
    assert np.abs(train_logits(launched, tmp_path, "saved", dtype) - expected).max() < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_train_starts_from_what_transformers_saved(train, tmp_path, dtype):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=256,
        n_positions=48,
        n_embd=40,
        n_layer=2,
        n_head=5,
        n_inner=72,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).to(dtype)
    model.save_pretrained(tmp_path / "hf")
    actual = train_logits(train, tmp_path, "hf")
    assert np.abs(actual - hf_logits(model.float().eval())).max() < TOLERANCE


def test_train_starts_from_weights_without_the_prefix(train, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=256, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=None
    )
    model = GPT2LMHeadModel(config)
    model.transformer.save_pretrained(tmp_path / "hf")
    actual = train_logits(train, tmp_path, "hf")
    assert np.abs(actual - hf_logits(model.eval())).max() < TOLERANCE
