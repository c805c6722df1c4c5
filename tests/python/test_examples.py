"""The scripts in examples/python, started by the commands of their headings, on two CPU ranks."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ranks import shell

LOOP = "zerorun --num_gpus 2 loop.py --stage 3"
DDP = [
    "zerorun --nproc_per_node 2 ddp.py",
    "zerorun --nproc_per_node 2 --use_env ddp.py",
    "zerorun --nproc_per_node 2 ddp.py --sharded",
]
TRAINER = "zerorun --num_gpus 2 trainer.py --deepspeed ds_config_stage3.json --output_dir out"
COMMANDS = [LOOP, *DDP, TRAINER]


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    """A copy of the scripts and their configurations."""
    return shutil.copytree(root / "examples" / "python", tmp_path / "scripts")


def ok(job: subprocess.CompletedProcess[str]) -> str:
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


def test_the_plain_loop_is_the_same_at_every_stage(build: Path, folder: Path) -> None:
    commands = [LOOP.replace("3", str(stage)) for stage in range(4)]
    outputs = [ok(shell(build, command, folder)) for command in commands]
    assert len(set(outputs)) == 1
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", outputs[0])]
    assert losses[-1] < 0.6 * losses[0]


def test_a_ddp_script_with_and_without_local_rank_and_sharded(build: Path, folder: Path) -> None:
    outputs = [ok(shell(build, command, folder)) for command in DDP]
    assert outputs[0] == outputs[1] == outputs[2]
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", outputs[0])]
    assert len(losses) == 3
    assert losses[-1] < 0.3 * losses[0]


def trained(build: Path, folder: Path, *options: str) -> list[float]:
    """The losses that an unedited Trainer script logs; of what is given twice, the last counts."""
    line = f"{TRAINER} --use_cpu --per_device_train_batch_size 2 --max_steps 6 --logging_steps 1"
    line += " --save_steps 3 --learning_rate 1e-3 --report_to none"
    job = shell(build, " ".join([line, *options]), folder)
    output = ok(job)
    assert "deepspeed is zerorun" in job.stderr
    assert "eval_loss" in output
    return [float(loss) for loss in re.findall(r"'loss': '(\S+)'", output)]


def test_trainer_saves_and_resumes_at_another_stage(build: Path, folder: Path) -> None:
    pytest.importorskip("accelerate")
    config = json.loads((folder / "ds_config_stage3.json").read_text())
    config["zero_optimization"]["stage"] = 2
    (folder / "stage2.json").write_text(json.dumps(config))
    whole = trained(build, folder)
    assert len(whole) == 6
    assert whole[-1] < whole[0]
    checkpoint = folder / "out" / "checkpoint-3"
    assert (checkpoint / "global_step3").is_dir()
    assert (folder / "out" / "model.safetensors").stat().st_size > 100_000
    options = ["--deepspeed stage2.json", f"--resume_from_checkpoint {checkpoint}"]
    assert trained(build, folder, *options) == whole[3:]


def test_trainer_with_host_offload_and_bf16(build: Path, folder: Path) -> None:
    pytest.importorskip("accelerate")
    config = json.loads((folder / "ds_config_stage3.json").read_text())
    for name in ("offload_optimizer", "offload_param"):
        config["zero_optimization"][name]["device"] = "cpu"
    config["bf16"]["enabled"] = "auto"
    (folder / "offload.json").write_text(json.dumps(config))
    losses = trained(build, folder, "--deepspeed offload.json --bf16")
    assert losses[-1] < losses[0]
