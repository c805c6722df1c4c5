"""Unedited scripts train as under DeepSpeed: the same losses, from the same seed.

make_deepspeed_golden.py has written what DeepSpeed itself computes.
"""

from prelude import *

DATA = HERE / "data" / "deepspeed_curves.json"
ECOSYSTEM = HERE.parent / "ecosystem"
# Stage and precision.
TRAINER_RUNS = {"stage2": (2, False), "stage3": (3, False), "stage3-bf16": (3, True)}
STEPS = 20


def trainer_arguments(key: str, scripts: Path, out: Path, scratch: Path) -> list[str]:
    """Of examples/python/trainer.py; its configuration goes to `scratch`."""
    stage, bf16 = TRAINER_RUNS[key]
    config = json.loads((scripts / "ds_config_stage3.json").read_text())
    config["zero_optimization"]["stage"] = stage
    config["bf16"]["enabled"] = "auto"
    file = scratch / f"{key}.json"
    file.write_text(json.dumps(config))
    options = (
        f"--deepspeed {file} --output_dir {out} --text {scripts.parent.parent / 'LICENSE'} "
        f"--per_device_train_batch_size 2 --max_steps {STEPS} --save_steps {STEPS} --use_cpu "
        "--logging_steps 1 --learning_rate 3e-3 --report_to none"
    )
    return [*options.split(), *(["--bf16"] if bf16 else [])]


def trainer_losses(out: Path) -> list[float]:
    state = json.loads((out / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def accelerate_losses(output: str) -> list[float]:
    """What examples/python/accelerate_lora.py prints."""
    (found,) = re.findall(r"ranks 2 losses (.*)", output)
    return [float(loss) for loss in found.split()]


ACCELERATE = "python -m zerorun.compat -m accelerate.commands.launch"
ACCELERATE += " --config_file accelerate_zero3.yaml accelerate_lora.py out"
TRAINER = "zerorun --num_gpus 2 trainer.py --deepspeed ds_config_stage3.json --output_dir out"
COMMANDS = [ACCELERATE, TRAINER]
HALF = STEPS // 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Folders) -> Path:
    copy = tmp_path_factory.mktemp("curves") / "scripts"
    return shutil.copytree(ROOT / "examples" / "python", copy)


def run(folder: Path, line: str) -> str:
    python = transformers_python()  # skips where there are no such libraries
    if line.startswith("python"):
        python = torch_python()  # zerorun.compat has to come before what looks for DeepSpeed
    job = passed(shell(line, folder, **python))
    assert "deepspeed is zerorun" in job.stderr
    return job.stdout


def train(folder: Path, key: str, *options: str, offload: str = "none") -> list[float]:
    """The losses of Trainer, which `key` names in the golden file; of options given twice, the last
    counts."""
    arguments = trainer_arguments(key, ROOT / "examples" / "python", folder / key, folder)
    config = json.loads((folder / f"{key}.json").read_text())
    for section in ("offload_optimizer", "offload_param"):
        config["zero_optimization"][section]["device"] = offload
    (folder / f"{key}.json").write_text(json.dumps(config))
    assert "eval_loss" in run(folder, " ".join([TRAINER, *arguments, *options]))
    losses = trainer_losses(folder / key)
    assert len(losses) == STEPS
    return losses


def assert_follows(losses: list[float], name: str, tolerance: float) -> None:
    golden = json.loads(DATA.read_text())["losses"][name]
    assert losses == pytest.approx(golden, rel=tolerance)


def test_trainer_saves_and_resumes_at_another_stage(folder: Path) -> None:
    assert_follows(train(folder, "stage3", f"--save_steps {HALF}"), "trainer-stage3", 1e-4)
    checkpoint = folder / "stage3" / f"checkpoint-{HALF}"
    assert (checkpoint / f"global_step{HALF}").is_dir()
    assert (folder / "stage3" / "model.safetensors").stat().st_size > 100_000
    losses = train(folder, "stage2", f"--resume_from_checkpoint {checkpoint}")
    assert_follows(losses, "trainer-stage2", 1e-4)


def test_trainer_with_host_offload_and_bf16(folder: Path) -> None:
    losses = train(folder, "stage3-bf16", offload="cpu")
    assert_follows(losses, "trainer-stage3-bf16", 1e-2)


def test_accelerate_and_lora(folder: Path) -> None:
    """Under accelerate's own launcher, which is torchrun's, with zero.Init and stage 3."""
    line = ACCELERATE.replace(".launch ", ".launch --main_process_port 0 ")
    # The second run starts from the first one's adapter.
    runs = [accelerate_losses(run(folder, f"{line} --text {ROOT / 'LICENSE'}")) for _ in range(2)]
    assert_follows(runs[0], "accelerate-lora", 1e-4)
    assert runs[1][0] < runs[0][0] - 0.1
    assert (folder / "out" / "adapter.bin").stat().st_size > 1000


def test_trainer_divides_sequences(tmp_path: Path) -> None:
    program = [ECOSYSTEM / "program.py", "ulysses_trainer", "stage3"]
    script = ["--deepspeed_compat", *program, "--figures", tmp_path / "figures.json"]
    passed(launch(2, *script, cwd=tmp_path, **transformers_python()))
    found = json.loads((tmp_path / "figures.json").read_text())
    golden = json.loads((ECOSYSTEM / "golden" / "ulysses_trainer.json").read_text())
    expected = golden["runs"]["stage3"]
    assert found == {name: pytest.approx(values, rel=1e-4) for name, values in expected.items()}
