"""LLaMA-Factory's supervised fine-tuning, of all parameters or of LoRA."""

import importlib.machinery
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import trl
from program import Figures, history, trainer_arguments
from tiny import save_llama, sentence, shared_folder
from transformers import TrainerCallback

os.environ["DISABLE_VERSION_CHECK"] = "1"  # it asks for transformers up to 5.6
sys.modules["torchaudio"] = ModuleType("torchaudio")  # imported, used only for sound
sys.modules["torchaudio"].__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
vars(trl)["AutoModelForCausalLMWithValueHead"] = None  # imported, used only for PPO

from llamafactory.hparams import get_train_args  # noqa: E402
from llamafactory.train.sft import run_sft  # noqa: E402


class Logged(TrainerCallback):
    """What the Trainer has logged when it ends."""

    def on_train_end(self, _arguments: Any, state: Any, *_: Any, **__: Any) -> None:
        self.state = state


def figures(given: Any) -> Figures:
    model, data = save_llama(), Path(shared_folder())
    texts = [(sentence(at, 4), sentence(at, 8)) for at in range(32)]
    rows = [{"instruction": one, "input": "", "output": other} for one, other in texts]
    (data / "rows.json").write_text(json.dumps(rows))
    (data / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    arguments = trainer_arguments(given, output_dir=shared_folder(), max_steps=6) | {
        "stage": "sft",
        "do_train": True,
        "model_name_or_path": model,
        "dataset": "rows",
        "dataset_dir": str(data),
        "template": "empty",
        "cutoff_len": 32,
        "finetuning_type": "lora" if "lora" in given.words else "full",
        "lora_target": "all",
        "lora_rank": 4,
        "overwrite_cache": True,
        "disable_gradient_checkpointing": True,  # its own expects an older transformers
        "gradient_accumulation_steps": 2,
    }
    logged = Logged()
    run_sft(*get_train_args(arguments), callbacks=[logged])
    return history(logged)
