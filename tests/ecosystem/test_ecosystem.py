"""Programs of other projects train under zerorun as under DeepSpeed, from the same seed.

make_golden.py has written what DeepSpeed itself computes.
"""

import importlib.util

from prelude import *
from runs import HERE, PACKAGES, RANKS, RUNS, golden

ALL = [(program, name) for program, runs in RUNS.items() for name in runs]

# What one rounding in fp32 changes in figures that are differences of larger numbers. TRL's KL
# divergence is the mean of exp(d) - d - 1, which subtracts numbers near 1.
ROUNDING = {"kl": 2.0**-24}


def worst_difference(name: str, found: list[float], expected: list[float]) -> float:
    """Relative to the largest of a series, since rewards and KL divergences pass through zero, and
    without what a rounding explains."""
    assert len(found) == len(expected)
    scale = max(map(abs, expected))
    worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    return max(0.0, worst - ROUNDING.get(name, 0.0)) / scale


def figures_of(program: str, run: str, folder: Path, ranks: int = RANKS) -> dict[str, Any]:
    file = folder / "figures.json"
    script = [HERE / "program.py", program, run, "--figures", file]
    variables = {"TOKENIZERS_PARALLELISM": "false", "TMPDIR": str(folder)}
    passed(launch(ranks, "--deepspeed_compat", *script, cwd=folder, **variables))
    return json.loads(file.read_text())


@each("program name", *ALL, ids=[f"{p}-{n}" for p, n in ALL])
def test_follows_deepspeed(tmp_path: Path, record_property: Any, program: str, name: str) -> None:
    missing = [name for name in PACKAGES[program] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    expected = golden(program).get(name)
    if expected is None:
        pytest.skip(f"no figures of DeepSpeed's yet: make_golden.py {program} records them")
    found = figures_of(program, name, tmp_path)
    assert found.keys() == expected.keys()
    differences = {key: worst_difference(key, found[key], expected[key]) for key in expected}
    record_property("largest_difference", max(differences.values()))  # for docs/ecosystem.md
    tolerance = 1e-2 if "bf16" in name else 1e-5
    assert max(differences.values()) <= tolerance, (differences, found, expected)


@each("package program", ("peft", "peft_kinds"), ("transformers", "distributed_config"))
def test_others_follow_pytorch(
    tmp_path: Path, record_property: Any, package: str, program: str
) -> None:
    """Their figures are differences; what has to be the same, they compare themselves."""
    pytest.importorskip(package)
    found = figures_of(program, "stage3", tmp_path)
    record_property("largest_differences", json.dumps(found))  # for docs/ecosystem.md
    assert found
    # bf16 rounds a batch otherwise on two ranks; the largest difference was 4.6e-5.
    assert {run: found[run] for run in found if not max(found[run]) <= 1e-4} == {}


# Runs, then after which of the six steps one that resumes there sees other samples, and ends with
# other weights. Those are faults of these versions of transformers and accelerate, which plain ones
# (PyTorch's DDP in place of zerorun) have, too: docs/ecosystem.md.
SWEEPS: list[tuple[str, set[int], set[int]]] = [
    ("trainer-stage2", set(), set()),
    ("trainer-stage2-uneven", set(), set()),
    ("accelerate-stage2-seedable-uneven-still", set(), set()),
    ("accelerate-stage2-stream-still", set(), set()),
]
for plain in ("", "-plain"):
    SWEEPS += [
        (f"trainer-stage2-stream{plain}", {4, 5, 6}, {4, 5, 6}),
        (f"accelerate-stage2-seedable{plain}", set(), {1, 2, 3, 4, 5}),
        (f"accelerate-stage2-still{plain}", {4, 5}, {4, 5}),
    ]


@each("name other_samples other_bits", *SWEEPS)
def test_after_every_step(tmp_path: Path, name: str, other_samples: Any, other_bits: Any) -> None:
    found = figures_of("resumed", name, tmp_path)
    whole = found.pop("whole")
    assert whole["steps"] == len(found) == 6
    samples = {
        int(step)
        for step, each in found.items()
        for seen, own in zip(whole["seen"], each["seen"], strict=True)
        if seen[len(seen) - len(own) :] != own
    }
    assert samples == other_samples
    bits = {int(s) for s, each in found.items() if each["weights"] != whole["weights"]}
    assert bits == other_bits


def test_a_trainer_on_more_ranks(tmp_path: Path) -> None:
    """Twice the ranks and half of the accumulation: the same samples in every step."""
    whole = figures_of("resumed", "trainer-stage2-still-first", tmp_path, 1)["whole"]
    found = figures_of("resumed", "trainer-stage2-still-rest", tmp_path)
    for step, each in found.items():
        first, second = each["seen"]
        seen = [sorted(first[at : at + 2] + second[at : at + 2]) for at in range(0, len(first), 2)]
        for ids in seen[:-1]:
            assert len(ids) == 4, step
        used = set(whole["seen"][0][: 4 * int(step)]) if int(step) < 6 else set(range(21))
        assert used | set(first) | set(second) == set(range(21)), step


# --- the notebook of examples/steps, and recipes that need packages beside PyTorch ---

STEPS, RECIPES = ROOT / "examples" / "steps", ROOT / "examples" / "recipes"
PATH = os.pathsep.join(map(str, [BUILD / "bin", Path(sys.prefix) / "bin", os.environ["PATH"]]))


def test_the_notebook_trains_on_two_ranks(monkeypatch: Patch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = ROOT / "build" / "notebook"  # on a real disk
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(STEPS, folder)
    for name, value in environment(PATH=PATH, CUDA_VISIBLE_DEVICES="").items():
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
    job = passed(shell(command, tmp_path))
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
