#!/usr/bin/env python3
"""Writes data/deepspeed_curves.json: losses of the example scripts under real DeepSpeed.

    python tests/python/make_deepspeed_golden.py PYTHON

PYTHON has deepspeed, accelerate, transformers, peft and torch for the CPU (`bench/peers.py
--deepspeed` makes one: build/peers/bin/python). Two CPU ranks; the scripts and their arguments are
those of test_deepspeed_curves.py.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import test_deepspeed_curves as curves
from ranks import ROOT, output_of

SCRIPTS = ROOT / "examples" / "python"
VERSION = "import deepspeed; print(deepspeed.__version__)"


def run(python: str, *arguments: str | Path, cwd: Path) -> str:
    variables = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    variables["PATH"] = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    return output_of(python, *arguments, cwd=cwd, env=os.environ | variables)


def main() -> None:
    python = os.path.abspath(sys.argv[1])
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29544"]
    accelerate = ["-m", "accelerate.commands.accelerate_cli", "launch", "--config_file"]
    # DeepSpeed's host offload changes where the optimizer runs, and needs a compiler.
    yaml = (SCRIPTS / "accelerate_zero3.yaml").read_text().replace("device: cpu", "device: none")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "accelerate.yaml").write_text(yaml)
        losses = {}
        for key in curves.TRAINER_RUNS:
            arguments = curves.trainer_arguments(key, SCRIPTS, folder / key, folder)
            run(python, *torchrun, SCRIPTS / "trainer.py", *arguments, cwd=folder)
            losses[f"trainer-{key}"] = curves.trainer_losses(folder / key)
        arguments = [SCRIPTS / "accelerate_lora.py", "out", "--text", ROOT / "LICENSE"]
        output = run(python, *accelerate, folder / "accelerate.yaml", *arguments, cwd=folder)
        losses["accelerate-lora"] = curves.accelerate_losses(output)
        version = run(python, "-c", VERSION, cwd=folder).split()[-1]
    text = json.dumps({"deepspeed": version, "losses": losses}, indent=1)
    curves.DATA.write_text(text + "\n")


if __name__ == "__main__":
    main()
