"""The --save folder of train, and `zerorun ckpt`, as users meet them."""

import random

from prelude import *

KILLS = int(os.environ.get("ZERORUN_KILLS", "2"))
ENDLESS = ("--steps", 10**6, "--save", "run")


@pytest.fixture
def read(ckpt):
    return lambda *arguments: json.loads(ckpt(*arguments, "--json"))


@pytest.fixture
def ckpt(tmp_path):
    """Runs `zerorun ckpt`; returns its output, or its errors if it fails with a code."""

    def run(*arguments, code=0):
        result = ran([ZERORUN, "ckpt", *map(str, arguments)], cwd=tmp_path, timeout=DEADLINE)
        assert (result.returncode, code or result.stderr) == (code, code or ""), result.stderr
        return result.stderr if code else result.stdout

    return run


def test_saves_beside_the_training_give_the_same_checkpoints(train, ckpt):
    options = ("--save_every", 1, "--keep_last", 6, "--keep_every", 2)
    for folder, option in (("plain", "--save_async=0"), ("beside", "--save_async")):
        train("--steps", 6, *options, "--save", folder, option)
    for step in (2, 4, 6):  # what keep_every keeps is never put off
        output = ckpt("diff", f"plain/step{step}", f"beside/step{step}")
        assert "all values of all parameters are equal" in output
    ckpt("verify", "beside")
    output, _ = train("--steps", 7, "--save", "beside", "--resume", "beside")
    assert "resumed from beside after step 6" in output


def test_saves_that_are_put_off_are_counted(train, ckpt, tmp_path):
    output, _ = train("--steps", 40, "--save_every", 1, "--save", "run", "--save_async")
    found = re.search(r"(\d+) of 39 checkpoints were put off to a later step", output)
    put_off = int(found[1]) if found else 0
    assert len(list((tmp_path / "run").glob("step*"))) == 40 - put_off
    assert (tmp_path / "run/latest").read_text() == "step40\n"
    ckpt("verify", "run")


def test_killed_runs_and_prunes_leave_whole_checkpoints(start_train, ckpt, read, tmp_path):
    """At random moments, the launcher or all processes at once; the trace of
    tests/checkpoint/crash_test.cc has all of a save."""
    moments, reached, resume, killed_prunes = random.Random(0), 0, (), 0
    for kill in range(KILLS):
        options = (f"--save_async={kill % 2}", "--save_every", 1, "--keep_last", 3)
        job = start_train(*ENDLESS, *options, *resume)
        lines = wait_for_step(job, reached + 2)
        told = f"resumed from run after step {reached}"
        assert any(line.startswith(told) for line in lines) == bool(resume)
        time.sleep(moments.uniform(0, 0.3))
        kill_job(job, ranks=kill % 2)
        if kill % 2:  # while it starts and loads
            job = start_train(*ENDLESS, "--resume", "run")
            time.sleep(moments.uniform(0, 1))
            kill_job(job, ranks=kill % 4 == 1)
        ckpt("verify", "run")
        prune = piped([ZERORUN, "ckpt", "prune", tmp_path / "run", "--keep_last", 1])
        time.sleep(moments.uniform(0, 0.03))
        prune.kill()
        prune.communicate()
        killed_prunes += prune.returncode == -signal.SIGKILL
        ckpt("prune", "run", "--keep_last", 1)
        ckpt("verify", "run")
        step = int(read("ls", "run")["latest"].removeprefix("step"))
        assert step > reached
        reached, resume = step, ("--resume", "run")
    assert killed_prunes > 0 or KILLS < 20


def test_a_second_run_in_the_same_folder_is_an_error_at_once(start_train, train):
    job = start_train(*ENDLESS)
    wait_for_step(job, 1)
    _, errors = train("--steps", 1, "--save", "run", code=1)
    assert errors.count("another run saves there, process ") == 1, errors
    assert interrupted(job)[0] == 128 + signal.SIGINT


def test_what_a_run_would_destroy_is_refused_before_it_begins(train, tmp_path):
    train("--steps", 1, "--save", "run")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    no_folder_of_runs = "expected a folder that this run may fill and rename"
    for options, told in (
        (("--init", "run", "--save", "run"), "--init run lies in --save run"),
        (("--save", "/usr"), no_folder_of_runs),
        (("--save", "/usr/../etc/"), no_folder_of_runs),
    ):
        output, errors = train("--steps", 1, *options, code=2)
        assert told in errors
        assert "step 1/" not in output
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_checkpoints_that_latest_does_not_name_are_another_runs(train, tmp_path):
    train("--steps", 1, "--save", "run")
    for left in (tmp_path / "run").iterdir():
        if left.is_file():
            left.unlink()
    train("--steps", 2, "--save", "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.is_dir()) == ["step2"]
    assert (tmp_path / "run.1" / "step1" / "checkpoint.json").is_file()


def test_a_changed_config_json_is_noticed(train, tmp_path):
    train("--steps", 1, "--save", "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"n_head": 1}))
    options = ("--data", "text", "--steps", "2", "--save", "run", "--resume", "run")
    result = ran([ZERORUN, "--accelerator", "cpu", "train", *options], cwd=tmp_path)
    assert result.returncode == 1
    assert "another model: n_head was 2 and is 1" in result.stderr


def test_a_restarted_run_continues_by_itself_and_a_new_one_does_not(start_train, train):
    train("--steps", 2, "--save", "run")  # another job's
    options = ("--steps", 400, "--save", "run", "--save_every", 1)
    job = start_train(*options, launcher=("--max_restarts", "1"))
    text = "".join(wait_for_step(job, 5))
    assert "run held another run, now in " in text
    assert "resumed from" not in text
    os.kill(processes_of(job.pid)[-1], signal.SIGKILL)
    output, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    assert "restart 1 of 1" in errors
    (resumed,) = (line for line in output.splitlines() if line.startswith("resumed from run after"))
    assert int(resumed.split()[-1]) >= 4


def processes_of(launcher):
    """It and all that it has started; the last is a rank."""
    found = [launcher]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            found += processes_of(int(child))
    return found


def kill_job(job, ranks):
    """With `ranks` all processes at once; else the launcher, which takes the others along."""
    for pid in reversed(processes_of(job.pid) if ranks else [job.pid]):
        with contextlib.suppress(ProcessLookupError):  # it has ended with one before
            os.kill(pid, signal.SIGKILL)
    job.communicate(timeout=DEADLINE)


def test_old_checkpoints_are_removed_as_asked(train, ckpt, read, tmp_path):
    options = ("--save_every", 1, "--keep_last", 2, "--keep_every", 4)
    train("--steps", 9, "--save", "run", *options)
    kept = sorted(path.name for path in (tmp_path / "run").glob("step*"))
    assert kept == ["step4", "step8", "step9"]
    assert "would remove step4" in ckpt("prune", "run", "--keep_last", 1, "--dry_run")
    removed = read("prune", "run", "--keep_last", 1)["removed"]
    assert [entry["tag"] for entry in removed] == ["step4", "step8"]
    assert [path.name for path in (tmp_path / "run").glob("step*")] == ["step9"]
    errors = ckpt("prune", "run/step9", "--keep_last", 1, code=2)
    assert "run/step9 is a checkpoint itself" in errors
    errors = ckpt("show", "run/step9/checkpoint.json", code=2)
    assert "checkpoint.json: expected a folder" in errors


def test_checkpoints_are_listed_shown_and_compared(train, ckpt, read, tmp_path):
    train("--steps", 2, "--save_every", 1, "--save", "run")
    lines = ckpt("ls", "run").splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["step1", "1"], ["*", "step2"]]
    listed = read("ls", "run")["checkpoints"]
    assert [(entry["step"], entry["ranks"]) for entry in listed] == [(1, 2), (2, 2)]
    part = tmp_path / "run" / "step1" / "part"
    part.mkdir()
    (part / "more").write_bytes(bytes(1000))
    assert read("ls", "run")["checkpoints"][0]["nbytes"] == listed[0]["nbytes"] + 1000
    shutil.rmtree(part)
    shown = read("show", "run", "--tag", "step1")
    assert shown["step"] == 1
    (wte,) = (p for p in shown["parameters"] if p["name"] == "transformer.wte.weight")
    assert (wte["shape"], wte["dtype"]) == ([256, 16], "bf16")
    assert wte["norm"] > 0
    assert "transformer.wte.weight" in ckpt("show", "run", "--no_norms")
    differences = read("diff", "run/step1", "run/step2")
    assert differences["equal"] is False
    assert any(d["name"] == "transformer.wte.weight" for d in differences["differences"])
    assert read("diff", "run/step2", "run")["equal"] is True
    (tmp_path / "red\x1b[31m").symlink_to("run")
    for command in ("ls", "show", "verify"):
        assert "red\\x1b[31m" in ckpt(command, "red\x1b[31m")


def test_damaged_checkpoints_are_told_from_intact_ones(train, ckpt, read, tmp_path):
    train("--steps", 2, "--save_every", 1, "--save", "run")
    verified = [line.split(": ")[1] for line in ckpt("verify", "run").splitlines()]
    assert verified == ["ok", "ok", "step2"]
    shard = next((tmp_path / "run" / "step1").glob("rank00001-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    errors = ckpt("verify", "run", code=1)
    assert "run/step1/" + shard.name in errors
    assert "step2" not in errors
    (tmp_path / "run" / "step1" / "checkpoint.json").write_text("damaged")
    assert "cannot be loaded" in ckpt("ls", "run")
    assert "step1" in ckpt("verify", "run", code=1)
    (tmp_path / "run" / "latest").write_text("../step2")
    assert "no latest: run/latest is damaged" in ckpt("ls", "run")
    (tmp_path / "run" / "latest").unlink()
    listed = read("ls", "run")
    assert listed["latest"] is None
    assert "latest does not exist" in listed["problem"]
    assert "holds no checkpoints" in ckpt("ls", ".", code=1)
    ckpt("ls", "nowhere", code=2)


def test_a_checkpoint_of_which_other_hosts_have_files_is_shown(train, ckpt, read, tmp_path):
    """With node-local storage, where the headers of those files are here."""
    train("--steps", 1, "--save", "run")
    before = read("show", "run")["parameters"]
    step = tmp_path / "run" / "step1"
    file = json.loads((step / "checkpoint.json").read_text())["files"][1]
    data = (step / file["name"]).read_bytes()
    (step / (file["name"] + ".header")).write_bytes(data[: file["header_nbytes"]])
    (step / file["name"]).unlink()
    after = read("show", "run")["parameters"]
    elsewhere = [entry["name"] for entry in after if "on_other_hosts" in entry]
    assert 0 < len(elsewhere) < len(after)
    for entry, same in zip(before, after, strict=True):
        if entry["name"] in elsewhere:
            entry["on_other_hosts"] = True
            del entry["norm"]
        assert same == entry
    assert ckpt("show", "run").count(" on other hosts\n") == len(elsewhere)
    assert "is missing, although" in ckpt("verify", "run", code=1)


def test_values_of_show_are_those_of_the_saved_model(train, ckpt, read, tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    train("--steps", 2, "--save", "run", "--dtype", "fp32")
    shown = read("show", "run")["parameters"]
    norms = {entry["name"]: entry["norm"] for entry in shown if "norm" in entry}
    model = safetensors.load_file(tmp_path / "run" / "model.safetensors")
    for name, norm in norms.items():
        assert torch.linalg.vector_norm(model[name].double()).item() == pytest.approx(norm), name
