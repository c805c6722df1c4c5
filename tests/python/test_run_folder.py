"""The --save folder of train, and `zerorun ckpt`, as users meet them."""

import json
import os
import re
import shutil
import signal

import pytest
from ranks import ran

DEADLINE = 300


@pytest.fixture
def start(zerorun, small_training):
    """Starts a training of two ranks; options follow the launcher's."""

    def run(*arguments, launcher=()):
        words = (zerorun, "--accelerator", "cpu", "--num_gpus", "2", *launcher, "train")
        options = ("--data", "text", "--micro_batch", "2", "--sample=")
        return small_training(*words, *options, *arguments)

    return run


@pytest.fixture
def train(start):
    """Runs one; returns its exit code, output and errors."""

    def run(*arguments, launcher=()):
        job = start("--model", "model.json", *arguments, launcher=launcher)
        output, errors = job.communicate(timeout=DEADLINE)
        return job.returncode, output, errors

    return run


@pytest.fixture
def ckpt(zerorun, tmp_path):
    """Runs `zerorun ckpt`; returns its output, or with `fails` the exit code and errors."""

    def run(*arguments, fails=False):
        command = [zerorun, "ckpt", *map(str, arguments)]
        result = ran(command, cwd=tmp_path, timeout=DEADLINE)
        if fails:
            return result.returncode, result.stderr
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        return result.stdout

    return run


def test_saves_beside_the_training_give_the_same_checkpoints(train, ckpt):
    for folder, option in (("plain", "--save_async=0"), ("beside", "--save_async")):
        code, _, errors = train(
            "--steps", 6, "--save_every", 1, "--keep_last", 6, "--keep_every", 2, "--save", folder,
            option,
        )  # fmt: skip
        assert code == 0, errors
    for step in (2, 4, 6):  # what keep_every keeps is never put off
        output = ckpt("diff", f"plain/step{step}", f"beside/step{step}")
        assert "all values of all parameters are equal" in output
    ckpt("verify", "beside")
    code, output, errors = train("--steps", 7, "--save", "beside", "--resume", "beside")
    assert code == 0, errors
    assert "resumed from beside after step 6" in output


def test_saves_that_are_put_off_are_counted(train, ckpt, tmp_path):
    code, output, errors = train("--steps", 40, "--save_every", 1, "--save", "run", "--save_async")
    assert code == 0, errors
    found = re.search(r"(\d+) of 39 checkpoints were put off to a later step", output)
    put_off = int(found[1]) if found else 0
    assert len(list((tmp_path / "run").glob("step*"))) == 40 - put_off
    assert (tmp_path / "run/latest").read_text() == "step40\n"
    ckpt("verify", "run")


def test_a_run_that_is_killed_while_it_saves_goes_on_from_a_whole_checkpoint(start, train, ckpt):
    job = start("--model", "model.json", "--steps", 10**6, "--save", "run", "--save_async",
                "--save_every", 1)  # fmt: skip
    while not job.stdout.readline().startswith("step 1/"):
        assert job.poll() is None
    for line in job.stdout:
        if line.startswith("step ") and int(line.split()[1].split("/")[0]) > 20:
            break
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=DEADLINE)
    ckpt("verify", "run")
    latest = json.loads(ckpt("ls", "run", "--json"))["latest"]
    step = int(latest.removeprefix("step"))
    code, output, errors = train("--steps", step + 1, "--save", "run", "--resume", "run")
    assert code == 0, errors
    assert f"resumed from run after step {step}" in output


def test_a_second_run_in_the_same_folder_is_an_error_at_once(start, train):
    job = start("--model", "model.json", "--steps", 10**6, "--save", "run")
    while not job.stdout.readline().startswith("step 1/"):
        assert job.poll() is None
    code, _, errors = train("--steps", 1, "--save", "run")
    assert code == 1
    assert errors.count("another run saves there, process ") == 1, errors
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=DEADLINE)
    assert job.returncode == 128 + signal.SIGINT


def test_what_a_run_would_destroy_is_refused_before_it_begins(train, tmp_path):
    assert train("--steps", 1, "--save", "run")[0] == 0
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    code, output, errors = train("--steps", 1, "--init", "run", "--save", "run")
    assert code == 2
    assert "--init run lies in --save run" in errors
    assert "step 1/" not in output
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
    for folder in ("/", "/usr", "/usr/../etc/"):
        code, output, errors = train("--steps", 1, "--save", folder)
        assert code == 2
        assert f"--save {folder}: " in errors
        assert "expected a folder that this run may fill and rename" in errors
        assert "step 1/" not in output
    (tmp_path / "link").symlink_to("nowhere")
    code, _, errors = train("--steps", 1, "--save", "link")
    assert code == 2
    assert "--save link: a link to nowhere, which is not there" in errors


def test_checkpoints_that_latest_does_not_name_are_another_runs(train, tmp_path):
    assert train("--steps", 1, "--save", "run")[0] == 0
    for left in (tmp_path / "run").iterdir():
        if left.is_file():
            left.unlink()
    assert train("--steps", 2, "--save", "run")[0] == 0
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.is_dir()) == ["step2"]
    assert (tmp_path / "run.1" / "step1" / "checkpoint.json").is_file()


def test_a_changed_config_json_is_noticed(start, train, tmp_path):
    assert train("--steps", 1, "--save", "run")[0] == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"n_head": 1}))
    job = start("--steps", 2, "--save", "run", "--resume", "run")
    _, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 1
    assert "another model: n_head was 2 and is 1" in errors


def test_a_restarted_run_continues_by_itself_and_a_new_one_does_not(start, train, tmp_path):
    assert train("--steps", 2, "--save", "run")[0] == 0  # another job's
    job = start("--model", "model.json", "--steps", 400, "--save", "run", "--save_every", 1,
                launcher=("--max_restarts", "1"))  # fmt: skip
    lines = []
    for line in job.stdout:
        lines.append(line)
        if line.startswith("step ") and int(line.split()[1].split("/")[0]) >= 5:
            break
    assert any("run held another run, now in " in line for line in lines)
    assert not any("resumed from" in line for line in lines)
    os.kill(rank_of(job.pid), signal.SIGKILL)
    output, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    assert "restart 1 of 1" in errors
    resumed = [line for line in output.splitlines() if line.startswith("resumed from run after")]
    assert len(resumed) == 1
    assert int(resumed[0].split()[-1]) >= 4


def rank_of(launcher):
    """The process of a rank: the last below the launcher's."""
    below = launcher
    while True:
        with open(f"/proc/{below}/task/{below}/children", encoding="ascii") as file:
            children = file.read().split()
        if not children:
            return below
        below = int(children[-1])


def test_old_checkpoints_are_removed_as_asked(train, ckpt, tmp_path):
    code, _, errors = train("--steps", 9, "--save_every", 1, "--save", "run", "--keep_last", 2,
                            "--keep_every", 4)  # fmt: skip
    assert code == 0, errors
    kept = sorted(path.name for path in (tmp_path / "run").glob("step*"))
    assert kept == ["step4", "step8", "step9"]
    assert "would remove step4" in ckpt("prune", "run", "--keep_last", 1, "--dry_run")
    removed = json.loads(ckpt("prune", "run", "--keep_last", 1, "--json"))["removed"]
    assert [entry["tag"] for entry in removed] == ["step4", "step8"]
    assert [path.name for path in (tmp_path / "run").glob("step*")] == ["step9"]
    code, errors = ckpt("prune", "run/step9", "--keep_last", 1, fails=True)
    assert code == 2
    assert "run/step9 is a checkpoint itself" in errors
    code, errors = ckpt("show", "run/step9/checkpoint.json", fails=True)
    assert code == 2
    assert "checkpoint.json: expected a folder" in errors


def test_checkpoints_are_listed_shown_and_compared(train, ckpt, tmp_path):
    assert train("--steps", 2, "--save_every", 1, "--save", "run")[0] == 0
    lines = ckpt("ls", "run").splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["step1", "1"], ["*", "step2"]]
    listed = json.loads(ckpt("ls", "run", "--json"))
    assert [entry["step"] for entry in listed["checkpoints"]] == [1, 2]
    assert all(entry["ranks"] == 2 for entry in listed["checkpoints"])
    step1 = tmp_path / "run" / "step1"
    (step1 / "part").mkdir()
    (step1 / "part" / "more").write_bytes(bytes(1000))
    nbytes = json.loads(ckpt("ls", "run", "--json"))["checkpoints"][0]["nbytes"]
    assert nbytes == listed["checkpoints"][0]["nbytes"] + 1000
    shutil.rmtree(step1 / "part")

    shown = json.loads(ckpt("show", "run", "--tag", "step1", "--json"))
    assert shown["step"] == 1
    parameters = {entry["name"]: entry for entry in shown["parameters"]}
    wte = parameters["transformer.wte.weight"]
    assert wte["shape"] == [256, 16]
    assert wte["dtype"] == "bf16"
    assert wte["norm"] > 0
    assert "transformer.wte.weight" in ckpt("show", "run", "--no_norms")

    differences = json.loads(ckpt("diff", "run/step1", "run/step2", "--json"))
    assert differences["equal"] is False
    names = {entry["name"] for entry in differences["differences"]}
    assert "transformer.wte.weight" in names
    assert json.loads(ckpt("diff", "run/step2", "run", "--json"))["equal"] is True

    (tmp_path / "red\x1b[31m").symlink_to("run")
    for command in ("ls", "show", "verify"):
        assert "red\\x1b[31m" in ckpt(command, "red\x1b[31m")

    (tmp_path / "run" / "step1" / "checkpoint.json").write_text("damaged")
    assert "cannot be loaded" in ckpt("ls", "run")
    code, errors = ckpt("verify", "run", fails=True)
    assert code == 1
    assert "step1" in errors
    (tmp_path / "run" / "latest").write_text("../step2")
    assert "no latest: run/latest is damaged" in ckpt("ls", "run")
    (tmp_path / "run" / "latest").unlink()
    listed = json.loads(ckpt("ls", "run", "--json"))
    assert listed["latest"] is None
    assert "latest does not exist" in listed["problem"]
    assert "holds no checkpoints" in ckpt("ls", ".", fails=True)[1]
    assert ckpt("ls", "nowhere", fails=True)[0] == 2


def test_a_checkpoint_of_which_other_hosts_have_files_is_shown(train, ckpt, tmp_path):
    """With node-local storage, where the headers of those files are here."""
    assert train("--steps", 1, "--save", "run")[0] == 0
    before = json.loads(ckpt("show", "run", "--json"))["parameters"]
    step = tmp_path / "run" / "step1"
    file = json.loads((step / "checkpoint.json").read_text())["files"][1]
    data = (step / file["name"]).read_bytes()
    (step / (file["name"] + ".header")).write_bytes(data[: file["header_nbytes"]])
    (step / file["name"]).unlink()
    after = json.loads(ckpt("show", "run", "--json"))["parameters"]
    elsewhere = [entry["name"] for entry in after if "on_other_hosts" in entry]
    assert 0 < len(elsewhere) < len(after)
    for entry, same in zip(before, after, strict=True):
        if entry["name"] in elsewhere:
            entry["on_other_hosts"] = True
            del entry["norm"]
        assert same == entry
    assert ckpt("show", "run").count(" on other hosts\n") == len(elsewhere)
    assert "is missing, although" in ckpt("verify", "run", fails=True)[1]


def test_values_of_show_are_those_of_the_saved_model(train, ckpt, tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    code, _, errors = train("--steps", 2, "--save", "run", "--dtype", "fp32")
    assert code == 0, errors
    shown = json.loads(ckpt("show", "run", "--json"))["parameters"]
    norms = {entry["name"]: entry["norm"] for entry in shown if "norm" in entry}
    model = safetensors.load_file(tmp_path / "run" / "model.safetensors")
    for name, norm in norms.items():
        assert torch.linalg.vector_norm(model[name].double()).item() == pytest.approx(norm), name
