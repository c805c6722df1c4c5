"""The runs whose losses are compared with DeepSpeed's: arguments, and where the losses are."""

import json
import re
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data" / "deepspeed_curves.json"
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
    license_text = scripts.parent.parent / "LICENSE"
    arguments = ["--deepspeed", str(file), "--output_dir", str(out), "--text", str(license_text)]
    arguments += ["--per_device_train_batch_size", "2", "--max_steps", str(STEPS), "--use_cpu"]
    arguments += ["--logging_steps", "1", "--save_steps", str(STEPS), "--learning_rate", "3e-3"]
    return [*arguments, "--report_to", "none", *(["--bf16"] if bf16 else [])]


def trainer_losses(out: Path) -> list[float]:
    state = json.loads((out / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def accelerate_losses(output: str) -> list[float]:
    """What examples/python/accelerate_lora.py prints."""
    found = re.search(r"ranks 2 losses (.*)", output)
    assert found, output
    return [float(loss) for loss in found.group(1).split()]
