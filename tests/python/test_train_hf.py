"""The bundled train program and Hugging Face's transformers agree on a model, both ways."""

import numpy as np
import torch
from prelude import *

PROMPT = "def main(argv):"
TOLERANCE = 1e-4


def train(folder, *arguments, ranks=1):
    """Runs the program in a folder: one rank, or two of the launcher."""
    launcher = (ZERORUN, "--accelerator", "cpu", "--num_gpus", ranks) if ranks > 1 else ()
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    command = (*launcher, BUILD / "libexec" / "zerorun" / "train", *arguments)
    return output_of(*command, cwd=folder, env=own, timeout=120)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    text = "".join(f"def f{i}(x):\n    return x + {i * i}\n" for i in range(400))
    (folder / "text").write_text(text)
    shape = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
    (folder / "model.json").write_text(json.dumps(shape))
    return ("--data", folder / "text", "--model", folder / "model.json")


def train_logits(folder, init, dtype="fp32", ranks=1):
    options = ("--init", init, "--steps", 0, "--save=", "--dtype", dtype, "--sample", PROMPT)
    train(folder, *options, "--sample_tokens", 1, "--logits", "logits.bin", ranks=ranks)
    return np.fromfile(folder / "logits.bin", dtype=np.float32).reshape(len(PROMPT), -1)


def hf_logits(model):
    with torch.no_grad():
        return model(torch.tensor([list(PROMPT.encode())])).logits[0].numpy()


@each("dtype stage", ("fp32", 2), ("bf16", 3), ("fp16", 2))
def test_transformers_loads_what_two_ranks_saved(job, tmp_path, dtype, stage):
    from transformers import GPT2LMHeadModel  # seconds, which only the process of this file has

    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.003}}
    config |= {name: {"enabled": dtype == name} for name in ("bf16", "fp16")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = ("--save", "saved", "--metrics", "metrics.jsonl", "--sample", "def ")
    output = train(tmp_path, "--config", "config.json", *job, "--steps", 30, *options, ranks=2)
    assert "sample:\ndef " in output
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines[1:-1]]
    assert len(losses) == 30
    assert losses[-1] < 0.75 * losses[0]
    assert len(lines[-1]["param_hash"]) == 16
    options = {"dtype": torch.float32, "output_loading_info": True}
    model, info = GPT2LMHeadModel.from_pretrained(tmp_path / "saved", **options)
    assert not any(info.values()), info
    assert model.config.vocab_size == 256
    expected = hf_logits(model)
    assert np.abs(expected).max() > 1
    found = train_logits(tmp_path, "saved", dtype, ranks=2)
    assert np.abs(found - expected).max() < TOLERANCE


@each("dtype", torch.float32, torch.bfloat16, torch.float16)
@each("prefix", True, False)
def test_train_starts_from_what_transformers_saved(tmp_path, dtype, prefix):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    shape = {"n_positions": 48, "n_embd": 40, "n_layer": 2, "n_head": 5, "n_inner": 72}
    config = GPT2Config(vocab_size=256, bos_token_id=None, eos_token_id=None, **shape)
    model = GPT2LMHeadModel(config).to(dtype)
    (model if prefix else model.transformer).save_pretrained(tmp_path / "hf")
    actual = train_logits(tmp_path, "hf")
    assert np.abs(actual - hf_logits(model.float().eval())).max() < TOLERANCE
