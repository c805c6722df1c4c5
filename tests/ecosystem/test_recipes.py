"""The notebook of examples/steps, and recipes that need packages beside PyTorch."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from ranks import environment, passed, shell

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
STEPS, RECIPES = ROOT / "examples" / "steps", ROOT / "examples" / "recipes"
PATH = os.pathsep.join(map(str, [BUILD / "bin", Path(sys.prefix) / "bin", os.environ["PATH"]]))


def test_the_notebook_trains_on_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = ROOT / "build" / "notebook"  # on a real disk
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(STEPS, folder)
    for name, value in environment(BUILD, PATH=PATH, CUDA_VISIBLE_DEVICES="").items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(folder / "steps.ipynb", 4)
    client = nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    printed = ["".join(o.get("text", "") for o in c.get("outputs", [])) for c in notebook.cells]
    losses = [re.findall(r"loss (\S+)", text) for text in printed]
    ddp, zero1, stage3, resumed = [found for found in losses if found]
    assert ddp == zero1 == stage3
    assert len(resumed) == 2
    assert "def add_argument(self, " in printed[-1]


# peft asks transformers so.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_lora_of_a_local_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    shape = {"vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    shutil.copy(RECIPES / "lora.py", tmp_path)
    (tmp_path / "text.txt").write_text("All work and no play makes a dull text.\n" * 200)
    command = re.findall(r"^zerorun .*$", (RECIPES / "lora.py").read_text(), re.MULTILINE)[0]
    job = passed(shell(BUILD, command, tmp_path))
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", job.stdout)]
    assert losses[-1] < losses[0]
    base = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    trained = [value for name, value in loaded.named_parameters() if "lora_B" in name]
    assert all(value.abs().max() > 0 for value in trained)


def test_kubernetes_takes_the_jobs() -> None:
    yaml = pytest.importorskip("yaml")
    validate = pytest.importorskip("kubernetes_validate")
    texts = [(RECIPES / name).read_text() for name in ("trainjob.yaml", "indexed_job.yaml")]
    found = {each["kind"]: each for text in texts for each in yaml.safe_load_all(text)}
    assert found["TrainJob"]["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    trainer = found["TrainJob"]["spec"]["trainer"]
    assert trainer["command"][0] == "zerorun"
    assert not {"mpirun", "ssh"} & set(trainer["command"])
    container = {name: trainer[name] for name in ("image", "command", "env")}
    container |= {"name": "node", "resources": trainer["resourcesPerNode"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": found["TrainJob"]["metadata"]}
    pod["spec"] = {"containers": [container]}
    for document in (pod, found["Service"], found["Job"]):
        validate.validate(document, validate.latest_version(), strict=True)
    job = found["Job"]["spec"]
    assert job["template"]["spec"]["subdomain"] == found["Service"]["metadata"]["name"]
    assert job["completions"] == job["parallelism"]
