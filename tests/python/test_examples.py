"""The scripts in examples/python, as their users start them, on two CPU ranks."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from ranks import launch


@pytest.fixture(scope="module")
def scripts(root: Path) -> Path:
    return root / "examples" / "python"


def ok(job: subprocess.CompletedProcess[str]) -> str:
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


def test_the_plain_loop_is_the_same_at_every_stage(build: Path, scripts: Path) -> None:
    outputs = [ok(launch(build, 2, scripts / "loop.py", "--stage", stage)) for stage in range(4)]
    assert len(set(outputs)) == 1
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", outputs[0])]
    assert losses[-1] < 0.6 * losses[0]


def test_a_ddp_script_with_and_without_local_rank_and_sharded(build: Path, scripts: Path) -> None:
    jobs = [([], []), (["--use_env"], []), ([], ["--sharded"])]
    outputs = [
        ok(launch(build, 2, *options, scripts / "ddp.py", *arguments))
        for options, arguments in jobs
    ]
    assert outputs[0] == outputs[1] == outputs[2]
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", outputs[0])]
    assert len(losses) == 3
    assert losses[-1] < 0.3 * losses[0]


def trainer(build: Path, scripts: Path, out: Path, config: Path, *more: str) -> list[float]:
    """The logged losses of an unedited Trainer script."""
    options = ["--deepspeed", str(config), "--output_dir", str(out), "--use_cpu"]
    options += ["--per_device_train_batch_size", "2", "--max_steps", "6", "--logging_steps", "1"]
    options += ["--save_steps", "3", "--learning_rate", "1e-3", "--report_to", "none"]
    job = launch(build, 2, scripts / "trainer.py", *options, *more, cwd=out.parent)
    output = ok(job)
    assert "deepspeed is zerorun" in job.stderr
    assert "eval_loss" in output
    return [float(loss) for loss in re.findall(r"'loss': '(\S+)'", output)]


def test_trainer_saves_and_resumes_at_stages_2_and_3(
    build: Path, scripts: Path, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    config = json.loads((scripts / "ds_config_stage3.json").read_text())
    config["zero_optimization"]["stage"] = 2
    stage2 = tmp_path / "stage2.json"
    stage2.write_text(json.dumps(config))
    whole = trainer(build, scripts, tmp_path / "3", scripts / "ds_config_stage3.json")
    assert len(whole) == 6
    assert whole[-1] < whole[0]
    assert (tmp_path / "3" / "checkpoint-3" / "global_step3").is_dir()
    assert (tmp_path / "3" / "model.safetensors").stat().st_size > 100_000
    checkpoint = str(tmp_path / "3" / "checkpoint-3")
    # The same job goes on at another stage.
    resumed = trainer(
        build, scripts, tmp_path / "3", stage2, "--resume_from_checkpoint", checkpoint
    )
    assert resumed == whole[3:]
    assert trainer(build, scripts, tmp_path / "2", stage2) == whole


def test_trainer_with_host_offload_and_bf16(build: Path, scripts: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    config = json.loads((scripts / "ds_config_stage3.json").read_text())
    for name in ("offload_optimizer", "offload_param"):
        config["zero_optimization"][name]["device"] = "cpu"
    config["bf16"]["enabled"] = "auto"
    file = tmp_path / "offload.json"
    file.write_text(json.dumps(config))
    losses = trainer(build, scripts, tmp_path / "out", file, "--bf16")
    assert losses[-1] < losses[0]
