"""`zerorun tune`: what it tries, what it keeps, and what it says of bad input."""

import zerorun as package
from prelude import *
from zerorun.tune import __main__ as tool
from zerorun.tune.options import DEFAULTS, Options, parse
from zerorun.tune.search import Search, Trial, command_of


def search_with(rate: Any, given: dict[str, Any], fits: Any = None, **section: Any) -> Search:
    """A search of two ranks whose trials do not run: `rate` of configuration and micro-batch, 0
    for one that fails."""

    def run(name: str, values: dict[str, Any], micro_batch: int | None, _: list[str]) -> Trial:
        found = rate(values, micro_batch)
        status = "done" if found else "failed"
        return Trial(name, micro_batch, status, found, 1e3, world_size=2, parameters=3200)

    options = Options(Path("c.json"), ["zerorun"], ["script.py", "c.json"])
    options.autotuning = DEFAULTS | section
    search = Search(options, given, run)
    search.planned = lambda: fits or [row(stage) for stage in (1, 0, 2, 3)]
    search.run()
    return search


def row(stage: int, device: str = "none", fits: bool = True) -> dict[str, Any]:
    setting = f"stage {stage}" + f", optimizer {device}" * (device != "none")
    offload = {"offload_optimizer": device, "offload_param": "none", "ratio": 1.0}
    return {"setting": setting, "stage": stage, "fits": fits} | offload


def stage_of(values: dict[str, Any]) -> int:
    return values.get("zero_optimization", {}).get("stage", 0)


def test_the_best_stage_and_micro_batch_are_found() -> None:
    given = {"train_micro_batch_size_per_gpu": 2}
    search = search_with(lambda v, size: (10 if stage_of(v) == 2 else 5) * min(size, 8), given)
    assert stage_of(search.best_config) == 2
    assert search.best_config["train_micro_batch_size_per_gpu"] == 8
    names = [trial.name for trial in search.trials]
    assert names[:4] == ["as_given", "stage_1", "stage_2", "stage_3"]
    assert "micro-batch_16" in names
    assert "buckets_of_100" in names
    assert given == {"train_micro_batch_size_per_gpu": 2}


def test_a_micro_batch_that_does_not_train_is_halved() -> None:
    given = {"train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": 1}}
    search = search_with(lambda _, size: size if size <= 8 else 0, given)
    assert search.best_config["train_micro_batch_size_per_gpu"] == 8
    assert search.trials[0].status == "failed"


def test_offloading_is_tried_where_nothing_fits_without_it() -> None:
    rows = [row(1, fits=False), row(2, "cpu"), row(3, "cpu")]
    search = search_with(lambda v, _: float("offload_optimizer" in str(v)), {}, rows)
    offload = search.best_config["zero_optimization"]["offload_optimizer"]
    assert offload == {"device": "cpu", "ratio": 1.0}
    assert not any(trial.name == "stage_1" for trial in search.trials)


def test_a_search_is_bounded() -> None:
    for section, trials in (({"tuner_num_trials": 2}, 2), ({"tuner_early_stopping": 3}, 4)):
        search = search_with(lambda *_: 1.0, {"train_micro_batch_size_per_gpu": 1}, **section)
        assert len(search.trials) == trials
        assert search.best is search.trials[0]


def test_a_stage_is_tried_without_what_it_does_not_support() -> None:
    keys = {"zero_quantized_weights": True, "zero_quantized_gradients": True}
    seen: dict[int, set[str]] = {}

    def rate(values: dict[str, Any], _: int | None) -> float:
        seen.setdefault(stage_of(values), values["zero_optimization"].keys() - {"stage"})
        return 1.0

    zero = {"stage": 3, "zero_hpz_partition_size": 2, **keys}
    search_with(rate, {"zero_optimization": zero, "train_micro_batch_size_per_gpu": 1})
    assert seen == {0: set(), 1: set(keys), 2: set(keys), 3: zero.keys() - {"stage"}}


def test_an_elastic_batch_is_left_alone() -> None:
    search = search_with(lambda v, _: 10.0 * stage_of(v) + 1, {"elasticity": {"enabled": True}})
    assert stage_of(search.best_config) == 3
    assert "train_micro_batch_size_per_gpu" not in search.best_config
    assert all(trial.micro_batch is None for trial in search.trials)


def test_batches_stay_within_their_limit() -> None:
    given = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    search = search_with(lambda _, size: size, given, max_train_batch_size=16)
    assert search.best_config["train_micro_batch_size_per_gpu"] == 4  # 4 * 2 steps * 2 ranks
    fixed = search_with(lambda _, size: size, given | {"train_batch_size": 8})
    assert fixed.best_config["train_micro_batch_size_per_gpu"] == 4
    assert "gradient_accumulation_steps" not in fixed.best_config


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{ZERORUN.parent}:{os.environ['PATH']}")
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}}
    config["autotuning"] = {"enabled": True, "tuner_num_trials": 3, "end_profile_step": 4}
    (tmp_path / "c.json").write_text(json.dumps(config))
    write_small_job(tmp_path)
    return tmp_path


COMMAND = "tune c.json --accelerator cpu --num_gpus 2 -- train --data text --model model.json"


def start(words: str) -> subprocess.Popen[str]:
    return piped([ZERORUN, *words.split()], env=environment())


def results_of(job: subprocess.Popen[str], folder: Path) -> tuple[list[Any], dict[str, Any], str]:
    """The trials, the best configuration, and the command with it."""
    output, errors = job.communicate(timeout=240)
    assert job.returncode == 0, output + errors
    folder = folder / "autotuning_results"
    trials = json.loads((folder / "trials.json").read_text())
    optimal = json.loads((folder / "ds_config_optimal.json").read_text())
    best = max(trials, key=lambda trial: trial["rate"])
    assert f"* {best['name']}" in (folder / "summary.txt").read_text()
    command = (folder / "cmd_optimal.txt").read_text()
    assert command.strip() in output
    return trials, optimal, command


def test_a_program_is_tuned(tune: Path) -> None:
    trials, optimal, command = results_of(start(COMMAND), tune)
    assert [trial["status"] for trial in trials] == ["done"] * 3
    assert "autotuning" not in optimal
    best = max(trials, key=lambda trial: trial["rate"])
    assert f"--micro_batch {best['micro_batch']}" in command


SCRIPT = """
import argparse, json
import deepspeed, torch

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", dest="size", type=int)
parser.add_argument("--deepspeed")
args, _ = parser.parse_known_args()
config = json.load(open(args.deepspeed)) | {"train_micro_batch_size_per_gpu": args.size}
model = torch.nn.Linear(8, 8)
engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
for _ in range(100):  # the trial ends earlier
    engine.backward(engine(torch.ones(args.size, 8)).square().mean())
    engine.step()
open("ended", "w").close()
"""


def test_a_pytorch_script_is_tuned_and_run(tune: Path) -> None:
    size = "--per_device_train_batch_size"
    section = {"tuner_num_trials": 2, "end_profile_step": 4}
    section["arg_mappings"] = {"train_micro_batch_size_per_gpu": size}
    config = {"train_micro_batch_size_per_gpu": "auto", "optimizer": {"type": "AdamW"}}
    config["autotuning"] = section
    (tune / "ds.json").write_text(json.dumps(config))
    (tune / "script.py").write_text(SCRIPT)
    words = "--autotuning run --accelerator cpu --num_gpus 1 script.py --deepspeed ds.json"
    trials, optimal, command = results_of(start(f"{words} {size}=2"), tune)
    assert [(t["status"], t["micro_batch"]) for t in trials] == [("done", 2)] * 2
    assert optimal["optimizer"]
    assert f" --deepspeed autotuning_results/ds_config_optimal.json {size} 2" in command
    assert (tune / "ended").exists()


def test_a_command_that_fails_is_named(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    command = [str(tmp_path / "launcher")]
    options = SimpleNamespace(results=tmp_path, then_run=True)
    search = SimpleNamespace(trials=[], best=None)
    monkeypatch.setattr(tool, "parse", lambda _: options)
    monkeypatch.setattr(tool, "_tune", lambda _: (search, False))
    monkeypatch.setattr(tool, "_keep", lambda *_: command)
    assert tool.main([]) == 2
    told = f"zerorun tune: error: {command[0]}: No such file or directory\n"
    assert capsys.readouterr().err == told


def test_an_interrupt_keeps_the_best_so_far(tune: Path) -> None:
    # So that some trials are left when the signal arrives.
    text = (tune / "c.json").read_text().replace('"tuner_num_trials": 3', '"tuner_num_trials": 50')
    (tune / "c.json").write_text(text)
    job = start(COMMAND)
    assert job.stdout.readline().startswith("as_given: ")
    job.send_signal(signal.SIGINT)
    output, errors = job.communicate(timeout=60)
    assert job.returncode == 130
    assert "interrupted" in errors
    assert "best: " in output
    assert (tune / "autotuning_results" / "ds_config_optimal.json").exists()


@each(
    "words told",
    ("c.json", "no program to run"),
    ("c.json -- script.py --lr 1", "add --deepspeed c.json"),
    ("--autotuning fast x.py --deepspeed c.json", "got 'fast', expected tune or run"),
    ("--autotuning run x.py", "name no configuration"),
    ("none.json -- train", "No such file"),
    ("step.json -- train", "/autotuning/start_profile_step is 9"),
    ("metric.json -- train", "/autotuning/metric"),
)
def test_what_cannot_be_tuned_is_said(tune: Path, words: str, told: str) -> None:
    (tune / "step.json").write_text('{"autotuning": {"start_profile_step": 9}}')
    (tune / "metric.json").write_text('{"autotuning": {"metric": "joy"}}')
    with pytest.raises(package.ConfigError, match=f"(?i){re.escape(told)}"):
        parse(words.split())


def test_both_forms_of_the_command_mean_the_same(tune: Path) -> None:
    given = parse(["--num_gpus", "2", "c.json", "--trial_seconds", "3", "--", "train"])
    assert (given.config, given.trial_s) == (Path("c.json"), 3)
    assert given.launcher[1:] == ["--num_gpus", "2"]
    words = "--autotuning run --num_gpus 2 x.py --deepspeed c.json --lr 1"
    of_deepspeed = parse(words.split())
    assert of_deepspeed.then_run
    size = "--per_device_train_batch_size 4"
    command = command_of(of_deepspeed, Path("best.json"), size.split())
    assert command[1:] == f"--num_gpus 2 x.py --deepspeed best.json --lr 1 {size}".split()
