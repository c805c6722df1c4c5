"""zerorun.config: the typed form of a ds_config.json, and errors that say what is wrong."""

import torch
import zerorun
from prelude import *
from zerorun import config, device, environment

DS_CONFIG = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.0003, "betas": [0.8, 0.95], "eps": 1e-7}},
    "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 1e6},
}


def test_dictionary_text_and_file_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(DS_CONFIG))
    parsed = [config.load(path), config.parse(path.read_text()), config.parse(DS_CONFIG)]
    assert [each.config.source for each in parsed][::2] == [str(path), "<dict>"]
    values = [[(v.pointer, v.value, v.is_default) for v in each.values] for each in parsed]
    assert values == values[:1] * 3
    assert ("/zero_optimization/stage", "3", False) in values[0]
    shown = repr(parsed[0].config)
    assert "zero=ZeroConfig(stage=3, " in shown
    assert "batch=BatchConfig(train_batch_size=32, micro_batch_size=4, " in shown


def test_auto_is_resolved_or_named() -> None:
    auto = {
        "zero_optimization": {"reduce_bucket_size": "auto"},
        "scheduler": {"type": "linear", "params": {"total_num_steps": "auto"}},
    }
    parsed = config.parse(auto)
    resolved = config.resolve_auto(parsed, hidden_size=64, total_steps=50)
    assert resolved.config.zero.reduce_bucket_size == 4096
    assert resolved.config.scheduler.total_num_steps == 50
    assert parsed.config.scheduler.total_num_steps == 0  # the argument stays as it was
    raises(zerorun.ConfigError, "/scheduler/params/total_num_steps", config.resolve_auto, parsed)


def nested(depth: int) -> dict:
    value: dict = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@each("value", {"a": {1, 2}}, nested(100), nested(10**6))
def test_dictionaries_that_are_no_json_are_errors(value: dict) -> None:
    with pytest.raises(zerorun.ConfigError):
        config.parse(value)


def test_infinity_and_paths_are_read() -> None:
    given = {"steps_per_print": float("inf"), "zerorun": {"train": {"save": Path("out")}}}
    parsed = config.parse(given).config
    assert parsed.steps_per_print == 2**63 - 1
    assert json.loads(parsed.train_options) == {"save": "out"}


def test_schema_describes_the_keys() -> None:
    properties = config.schema()["properties"]
    assert "gradient_clipping" in properties
    assert "stage" in properties["zero_optimization"]["properties"]


# Settings of the templates of real trainers, with the batch sizes that the program would give where
# a template has none. `refused`: the keys that zerorun does not take. `ignored`: keys at the top
# level that DeepSpeed does not know and ignores, as does zerorun's stand-in for it; zerorun itself
# refuses them by name.
DATA = Path(__file__).parent / "data" / "real_configs.json"
CASES = json.loads(DATA.read_text())


def refused(settings: dict) -> set[str]:
    """The pointers in the error about the settings."""
    try:
        config.parse(settings)
    except zerorun.ConfigError as error:
        return set(re.findall(r"^ +\d+\. (\S+) \(", str(error), re.MULTILINE))
    return set()


@each("case", *CASES, ids=lambda case: f"{case['project']}: {case['file']}")
def test_a_configuration_is_taken_but_for_what_is_listed(case: dict) -> None:
    unknown = {f"/{key}" for key in case.get("ignored", [])}
    wrong = set(case.get("refused", []))
    assert refused(case["config"]) == unknown | wrong
    if not wrong:
        known = {k: v for k, v in case["config"].items() if f"/{k}" not in unknown}
        assert config.parse(known).config.zero.stage == case["stage"]


def test_the_stand_in_ignores_unknown_keys_at_the_top_level() -> None:
    """In a process of its own, since DeepSpeed may be installed."""
    names = [case["file"] for case in CASES if case.get("ignored") and not case.get("refused")]
    assert len(names) >= 3
    program = f"""
import json, zerorun.compat
zerorun.compat.install()
from deepspeed.runtime.config import adapt_config
from zerorun import config
for case in json.load(open({str(DATA)!r})):
    if case["file"] in {names!r}:
        print(config.parse(adapt_config(case["config"])).config.zero.stage == case["stage"])
"""
    job = passed(ran([sys.executable, "-c", program], env={"PYTHONPATH": str(BUILD / "python")}))
    assert job.stdout.split() == ["True"] * len(names)
    for case in CASES:
        if case["file"] in names:
            assert all(key in job.stderr for key in case["ignored"])


# --- the environment variables that the package reads itself ---


@each("name", "LOCAL_RANK", "RANK")
@each("text", "", "-1", "1.5", "٣", "one")
def test_a_rank_that_is_no_number_is_an_error(monkeypatch: Patch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    told = f"{name} is '{text}', expected a number"
    raises(zerorun.ConfigError, told, getattr(environment, name.lower()))


def test_gpus_are_shared_when_asked(monkeypatch: Patch) -> None:
    for text in ("", "0", "1"):
        monkeypatch.setenv("ZERORUN_SHARE_GPUS", text)
        assert environment.may_share_gpus() == (text == "1")


PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STEP = {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "n[1-2]"}
STEP |= {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
STEP |= {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


def test_tasks_of_srun_are_ranks_for_pytorch_too_and_a_batch_script_is_one_rank() -> None:
    outside = {name: value for name, value in os.environ.items() if name not in PLACE}
    for asked, ports in ((None, range(15000, 30000)), (1234, [1234])):
        with mock.patch.dict(os.environ, outside | STEP, clear=True):
            assert environment.adopt_scheduler(port=asked)
            found = [os.environ[name] for name in PLACE]
            assert found[:5] == ["3", "4", "1", "2", "n1"]
            assert int(found[5]) in ports
            assert environment.local_rank() == 1
    batch = {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}
    with mock.patch.dict(os.environ, outside | batch, clear=True):
        assert not environment.adopt_scheduler()
        assert (environment.local_rank(), environment.rank()) == (None, 0)
        assert "RANK" not in os.environ


OLD = "the driver is too old"


@each(
    "pytorch visible zerorun_says told",
    ((True, "12.8"), "0,1", "", None),
    ((True, "12.8"), "", OLD, "PyTorch sees a GPU that zerorun cannot use: "),
    ((True, "12.8"), "0", OLD, f"{OLD}; zerorun --accelerator"),
    ((False, "12.8"), "0", OLD, "CUDA_VISIBLE_DEVICES=0, but PyTorch"),
    ((False, "12.8"), "0", "", "sees no GPU: torch.cuda.init() says why"),
    ((False, "12.8"), "", OLD, None),  # CPU ranks
    ((False, "12.8"), "-1", OLD, None),
    ((False, None), "", "", None),
    ((False, None), "0,1", "", "training on the CPU: CUDA_VISIBLE_DEVICES=0,1, but PyTorch"),
)
def test_a_gpu_that_cannot_be_used_is_no_reason_to_train_on_the_cpu(
    monkeypatch: Patch,
    caplog: Log,
    pytorch: tuple[bool, str | None],
    visible: str,
    zerorun_says: str,
    told: str | None,
) -> None:
    sees, built_for = pytorch
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(zerorun._C, "why_no_cuda", lambda: zerorun_says)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    decide = device._why_no_gpu.__wrapped__
    if told is None or built_for is None:
        assert bool(decide()) is not sees
        assert (told or "") in caplog.text
        assert bool(caplog.records) == bool(told)
    else:
        raises(zerorun.DeviceError, told, decide)
        assert not caplog.records


@each(
    "visible count chosen",
    ("0", 1, 0),
    ("GPU-ab", 1, 0),
    ("4,5,6,7", 4, 2),
    (None, 1, None),
    ("0,1", 2, None),
)
def test_the_only_gpu_that_a_scheduler_shows_is_the_ranks(
    monkeypatch: Patch, visible: str | None, count: int, chosen: int | None
) -> None:
    monkeypatch.setattr(device, "_why_no_gpu", lambda: "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("ZERORUN_SHARE_GPUS", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("LOCAL_RANK", "2")
    if chosen is None:
        raises(zerorun.ConfigError, "start at most one rank per GPU", device.local_device)
    else:
        assert device.local_device() == torch.device("cuda", chosen)


def test_nccl_launches_in_the_programs_order_unless_the_user_chose() -> None:
    """The variable is there as soon as the package is."""
    show = "import os, zerorun; print(os.environ['NCCL_LAUNCH_ORDER_IMPLICIT'])"
    others = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    others["PYTHONPATH"] = os.pathsep.join(sys.path)
    for given, expected in ({}, "1"), ({"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, "0"):
        job = ran([sys.executable, "-c", show], env=others | given)
        assert job.stdout.strip() == expected, job.stderr
