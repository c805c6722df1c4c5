"""scripts/gpu_check and gpu_first where there is no GPU: on programs that only write down their
calls; and what they pack for other machines."""

import sysconfig

from gpu_machine import PROGRAM, PROGRAMS, Machine, write_program
from prelude import *


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def verdicts(text: str) -> dict[str, str]:
    found = re.findall(r"^- ([\w ]+): (\w+)[ :]", text, re.MULTILINE)
    return {step: verdict for verdict, step in found}


def failed(result: Ended) -> list[str]:
    found = [step for step, verdict in verdicts(result.stdout).items() if verdict == "FAIL"]
    assert result.returncode == bool(found)
    return found


@each(
    "options code told",
    ("comm", 3, "nvidia-smi finds no GPU"),
    ("--bogus", 2, "--prebuilt DIR"),
    ("--seconds 1.5", 2, "--prebuilt DIR"),
    ("--python python9", 2, "--prebuilt DIR"),
    ("devices", 2, "got devices, expected some of device nccl"),
)
def test_a_call_that_cannot_be_is_told(
    machine: Machine, options: str, code: int, told: str
) -> None:
    write_program(machine.tools / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    result = machine.check(*options.split())
    assert result.returncode == code
    assert told in result.stderr


def test_runs_every_check_on_packed_programs(machine: Machine) -> None:
    passed(machine.check())
    assert "Everything that was run passed." in machine.report()
    calls = machine.calls.read_text()
    programs = "build/gpu/programs"
    for call in (
        "zerorun env\n",
        "zerorun --accelerator cpu --num_gpus 2 train",
        "--accelerator cuda --num_gpus 2 train --config build/gpu/logs/clipped_stage2.json",
        "--attention_workspace 0\n",
        f"failures_on_gpu.py gather {programs}\n",
        *(f"--num_gpus {n} {machine.tools}/python3 bench/gpu/nccl_calls.py\n" for n in (1, 2)),
        f"hf.py --build {programs} --sides torch zerorun2 zerorun3 --rounds 4 --turns 1 --trace",
        "ckpt diff build/gpu/logs/first build/gpu/logs/again\n",
        "compute-sanitizer --error-exitcode 9 --tool racecheck",
        *(f"bench_gpu --part {part}" for part in ("bandwidth", "rate", "offload", "wide")),
    ):
        assert call in calls
    # What tells most comes first.
    order = ["Devices/*", "test_gpu_train ", "NCCL_HOSTID", "gpu.py memory", "--tf32"]
    order += ["clipped_stage2", "ckpt diff", "all_on_disk", "torch_on_gpu", "Transports/*"]
    order += ["hf.py", "bench_train", "peers.py", "compute-sanitizer"]
    on_gpu = "\n".join(line for line in calls.splitlines() if "--accelerator cpu" not in line)
    assert sorted(order, key=on_gpu.index) == order
    saves = re.findall(r"--save (\S*)", calls)
    assert len(saves) > 30
    assert set(saves) == {"", "build/gpu/logs/first", "build/gpu/logs/again"}
    # The texts of another machine would give other losses.
    assert calls.count("--data docs ") == len(saves)
    # A context stays open as long as steps run.
    process = int(re.search(r"^context (\d+)$", calls, re.MULTILINE)[1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_every_layer_runs_once_what_tells_most_first(machine: Machine, monkeypatch: Patch) -> None:
    found = verdicts(passed(machine.check(script="gpu_first")).stdout)
    assert set(found.values()) == {"pass"}
    references = {"fp32_cpu1_stage0", "bf16_cpu1_stage0", "fp32_cpu2_stage0"}
    monkeypatch.syspath_prepend(ROOT / "scripts")
    steps = importlib.import_module("gpu_steps")
    assert tuple(name for name in found if name not in references) == steps.FIRST
    assert set(found) == {*steps.FIRST, *references}
    # A machine that is there for 15 minutes has time for it, and for another run.
    table = steps.Table("", "", "").steps
    assert all(20 <= table[name].limit <= 100 for name in steps.FIRST)
    # The results are two files.
    assert sorted(path.name for path in machine.out.iterdir()) == ["logs.tar.gz", "report.md"]
    files = machine.archived()
    assert {"llama.log", "fp32_cpu2_stage0.jsonl", "fp32_stage3.json", "context.log"} <= files
    assert not any("/" in file for file in files)


def test_runs_of_one_configuration_that_differ_are_a_failure(machine: Machine) -> None:
    result = machine.check("twice", EQUAL="master of head.weight: 3 values differ")
    assert failed(result) == ["twice"]
    assert "3 values differ" in result.stdout
    result = machine.check("twice", losses={"logs/first": 5.5, "logs/again": 5.500001})
    assert failed(result) == ["twice"]
    assert "(expected at most 0)" in result.stdout


GPU1, GPU2 = (f"cuda --num_gpus {ranks} train --config build/gpu/logs" for ranks in (1, 2))


def test_losses_that_differ_by_more_than_rounding_are_failures(machine: Machine) -> None:
    losses = {f"{GPU2}/fp32": 5.5005, f"{GPU1}/bf16": 5.52, "--tf32": 5.52}
    assert failed(machine.check("trajectories", losses=losses)) == []
    losses = {
        f"{GPU1}/fp32_stage3": 5.501,
        f"{GPU1}/bf16_stage1": 5.502,
        "--tf32": 5.5,  # as without
        "--attention_workspace 0": 5.53,
        f"{GPU2}/clipped": "NaN",
    }
    expected = ["fp32_gpu1_stage3", "fp32_gpu1_stages", "bf16_gpu1_stages", "tf32"]
    expected += ["attention_workspace", "clipped_gpu2_stage2"]
    assert failed(machine.check("trajectories", losses=losses)) == expected


def test_calls_for_other_parts_keep_their_reports(machine: Machine) -> None:
    folder = machine.pack()
    for parts in (["device"], ["comm", "sanitize"]):
        machine.start("--prebuilt", folder, *parts).communicate()
    device, rest = (
        verdicts((machine.root / f"build/gpu_check_{name}/report.md").read_text())
        for name in ("device", "comm_sanitize")
    )
    assert "device_kernels" in device
    assert "comm" in rest
    assert not device.keys() & rest.keys()


def test_a_killed_rank_beside_nccl_has_to_end_the_job(machine: Machine) -> None:
    assert "- pass: killed" in machine.check("killed").stdout
    folder = machine.pack(program=PROGRAM.replace("exit 137", "true"))
    assert failed(machine.check("--prebuilt", folder, "killed")) == ["killed"]


FULL = "error: --attention_workspace: attention's backward takes 4 MiB"
NO_DEVICE = "========= Error: Device not supported. Please refer to the documentation."
DUPLICATE = "rank-0:7 [0] init.cc:903 NCCL WARN Duplicate GPU detected : rank 0 and rank 1"
OF_NCCL = [f"fp32_nccl{ranks}_stage{stage}" for ranks in (2, 4) for stage in range(4)]
SANITIZED = ["memcheck_device", "memcheck_train"]
LONG = "norm_test.cc:7: Failure\nexpected 3, got 4" + "\n[  FAILED  ] one of many" * 40


@each(
    "parts fail message verdict steps",
    ("trajectories", "--attention_workspace 0", FULL, "not run", ["attention_workspace"]),
    ("torch comm", "torch_on_gpu", "No module named 'torch'", "not run", ["torch"]),
    ("hf comm", "hf.py", "No module named 'transformers'", "not run", ["llama", "llama_fsdp2"]),
    ("sanitize", "--tool memcheck", NO_DEVICE, "not run", SANITIZED),
    ("sanitize", "--tool memcheck", "Invalid __global__ write", "FAIL", SANITIZED),
    ("nccl", "NCCL_HOSTID", DUPLICATE, "not run", OF_NCCL),
    ("nccl", "NCCL_HOSTID", "ncclCommSplit failed: invalid argument", "FAIL", OF_NCCL),
    ("figures", "--part bandwidth", "0.8 (target MISSED)", "below a target", ["bandwidth"]),
    ("figures", "--part bandwidth", "error", "FAIL", ["bandwidth"]),
    ("train_kernels comm", "test_gpu_train", LONG, "FAIL", ["train_kernels"]),
)
def test_what_fails_is_in_the_report_and_the_rest_runs(
    machine: Machine, parts: str, fail: str, message: str, verdict: str, steps: list[str]
) -> None:
    """What this machine cannot do does not count, and what is too slow neither."""
    status = "4" if verdict == "below a target" else "1"
    text = f"rank-0:7 [0] NCCL INFO Bootstrap\n{message}"
    result = machine.check(*parts.split(), fail=fail, MESSAGE=text, STATUS=status)
    report = machine.report()
    found = verdicts(report)
    assert [step for step in found if found[step] != "pass"] == steps
    assert {found[step] for step in steps} == {verdict}
    assert "pass" in found.values()
    assert result.returncode == (verdict == "FAIL")
    assert all(line in report for line in message.splitlines())
    assert "Bootstrap" not in report
    concluded = "Something failed." if verdict == "FAIL" else "Everything that was run passed."
    left_out = [f"Not run: {', '.join(steps)}."] if verdict == "not run" else []
    assert "\n".join([concluded, *left_out, "It took "]) in report


def test_a_sanitizer_that_is_missing_does_not_count(machine: Machine) -> None:
    (machine.tools / "compute-sanitizer").unlink()
    assert "- not run: memcheck_train: bash: " in passed(machine.check("memcheck_train")).stdout


def test_a_reference_that_fails_is_not_taken_for_the_gpu(machine: Machine) -> None:
    settings = {"script": "gpu_first", "fail": "--accelerator cpu", "MESSAGE": "no docs"}
    found = verdicts(machine.check("fp32_gpu1_stage0", **settings).stdout)
    assert found["fp32_cpu1_stage0"] == "FAIL"
    assert set(found) == {"fp32_cpu1_stage0", "fp32_gpu1_stage0"}


def test_a_log_without_end_loses_its_middle(machine: Machine) -> None:
    flood = "#!/bin/bash\nyes 'NCCL WARN again' | head -c 3000000\necho the end\n"
    machine.check("--prebuilt", machine.pack(program=flood), "train_kernels", script="gpu_first")
    log = (machine.root / "build" / "gpu" / "logs" / "train_kernels.log").read_text()
    assert 1_000_000 < len(log) < 1_100_000
    assert log.startswith("NCCL WARN again")
    assert log.endswith("the end\n")


def test_in_a_trial_what_needs_a_gpu_says_that_there_is_none(machine: Machine) -> None:
    write_program(machine.tools / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    says = "test_gpu: GPUs are asked for, but this host shows none (no /dev/nvidia*)"
    settings = {"script": "gpu_first", "fail": "Devices/*", "MESSAGE": says}
    result = machine.check("--trial", "device", **settings)
    assert result.returncode == 3
    assert f"- no GPU: device_kernels (0 s): {says}" in result.stdout
    assert verdicts(result.stdout)["train_kernels"] == "pass"
    settings["MESSAGE"] = "got 1, expected 2"
    assert machine.check("--trial", "device", **settings).returncode == 1


def test_a_report_has_what_zerorun_says_of_the_machine_and_no_variable(machine: Machine) -> None:
    says = "GPUs  1 visible\\nCPUs  0-15\\nmemory  1 TiB\\n\\nenvironment variables\\n  RANK\\n"
    folder = machine.pack(program=f"#!/bin/bash\nprintf '{says}'\n")
    machine.check("--prebuilt", folder, "env", script="gpu_first")
    assert "      GPUs  1 visible\n      CPUs  0-15\n      memory  1 TiB\n" in machine.report()
    assert "RANK" not in machine.report()


def test_a_dry_run_names_every_command_and_runs_none(machine: Machine) -> None:
    result = passed(machine.check("--dry-run"))
    commands = re.findall(r"^- would run: \w+: `(.*?)`$", result.stdout, re.MULTILINE | re.DOTALL)
    assert len(commands) >= 60
    for command in commands:
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    assert "Nothing was run." in result.stdout
    assert not machine.calls.exists()
    assert not machine.out.exists()


@each("script number", ("gpu_check", signal.SIGINT), ("gpu_first", signal.SIGTERM))
def test_an_interrupted_run_keeps_what_it_has(machine: Machine, script: str, number: int) -> None:
    settings = {"script": script, "HANG": "test_gpu_train", "MESSAGE": "half a suite"}
    job = machine.start("--out", machine.out, "--prebuilt", machine.pack(), **settings)
    logs = machine.root / "build" / "gpu" / "logs"
    while not any("half a suite" in log.read_text() for log in logs.glob("*.log")):
        assert job.poll() is None, job.communicate()
        time.sleep(0.01)
    os.killpg(job.pid, number)  # as a terminal does
    stdout, _ = job.communicate(timeout=60)  # its programs would hold the pipe open
    assert job.returncode == 128 + number
    assert "- pass: device_kernels" in stdout
    assert re.search("^Interrupted in: .*train_kernels", machine.report(), re.MULTILINE)
    assert {"device_kernels.log", "train_kernels.log"} <= machine.archived()


def test_the_report_has_what_ended_before_the_time_was_over(machine: Machine) -> None:
    options = ["--seconds", 3, "train_kernels", "bandwidth", "comm"]
    passed(machine.check(*options, HANG="--part bandwidth", MESSAGE="AdamW: 2800 GB/s"))
    report = machine.report()
    assert "- pass: train_kernels" in report
    assert "- not run: bandwidth: not at its end after" in report
    assert "      AdamW: 2800 GB/s\n" in report
    assert "- not run: comm: the time was over (--seconds N)" in report
    assert "Transports/*" not in machine.calls.read_text()


def test_a_program_that_nothing_ends_does_not_hold_up_the_rest(machine: Machine) -> None:
    """What hangs in a driver ignores even SIGKILL; here, `timeout` itself does not end."""
    # A second for the first step, before which what hangs is not ended.
    machine.change("gpu_steps.py", 'Step("device_kernels", 60', 'Step("device_kernels", 1')
    machine.change("gpu_run.py", "job.wait(limit + 10)", "job.wait(limit + 1)")
    hangs = '[[ $* != *Devices/* ]] || exec sleep 20\nexec /usr/bin/timeout "$@"\n'
    write_program(machine.tools / "timeout", f"#!/bin/bash\n{hangs}")
    result = machine.check("device")
    assert "- FAIL: device_kernels (hung: more than 1 s)" in result.stdout
    assert "- pass: train_kernels" in result.stdout


# --- packs ---


def fake_build(machine: Machine) -> str:
    """A build with something to strip; the name of its module."""
    module = f"python/zerorun/_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    for file in [*PROGRAMS, module]:
        path = machine.root / "build" / "release" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shutil.which("true"), path)
    for file in ("__init__.py", "_C.pyi", "__pycache__/old.pyc"):
        write_program(machine.root / "python" / "zerorun" / file, "")
    return module


def test_a_pack_has_the_package_for_the_python_that_is_named(machine: Machine) -> None:
    module = fake_build(machine)
    cache = machine.root / "build" / "release" / "CMakeCache.txt"
    target = machine.root / "packed"

    def pack(*, refused: str = "") -> str:
        result = machine.check("--pack", target, "--python", machine.tools / "python3")
        assert result.returncode == bool(refused), result.stderr
        assert refused in result.stderr
        return result.stdout

    cache.write_text("ZERORUN_CUDA_ARCHITECTURES:STRING=80\n")
    pack(refused="is for GPUs of 80, expected 90: ZERORUN_CUDA_ARCHITECTURES=90")
    cache.write_text("ZERORUN_CUDA_ARCHITECTURES:STRING=80;90\n")
    pack(refused="of other sources or settings")  # it would refuse the packed backend
    (cache.parent / "build_id.cc").write_text("of one build")
    for command in ("init -q", "add scripts", "-c user.name=a -c user.email=a@b commit -qm a"):
        subprocess.run(["git", *command.split()], cwd=machine.root, check=True)
    told = pack()
    assert "for 80;90" in told
    assert Path(module).name in told
    with tarfile.open(target / "programs.tar.gz") as archive:
        files = {member.name.removeprefix("./") for member in archive if member.isfile()}
        commit = archive.extractfile("./commit").read().decode().strip()
    package = {module, "python/zerorun/__init__.py", "python/zerorun/_C.pyi"}
    rest = {"commit", *package, *PROGRAMS}
    assert {file for file in files if not file.startswith("system/")} == rest
    head = ["git", "rev-parse", "--short=12", "HEAD"]
    assert commit == subprocess.check_output(head, cwd=machine.root, text=True).strip()
    machine.change("gpu_pack.py", "MOST_MIB = 64", "MOST_MIB = 0")
    pack(refused="MiB, expected at most 0")


def test_python_is_the_one_whose_pytorch_sees_the_gpu(machine: Machine) -> None:
    write_program(machine.root / ".venv" / "bin" / "python", "#!/bin/sh\n")
    folder = machine.root / "with_gpu"
    folder.mkdir()
    python = folder / "python3"
    python.symlink_to(sys.executable)
    variables = {"PATH": f"{machine.tools}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    command = [python, machine.root / "scripts" / "gpu_check", "--dry-run", "torch"]
    for sees, expected in (("True", "with_gpu/python3"), ("False", ".venv/bin/python")):
        package = f"class cuda:\n    is_available = staticmethod(lambda: {sees})\n"
        (folder / "torch.py").write_text(package)
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        result = ran(command, env=os.environ | variables)
        assert re.search(rf"`\S*{expected} tests/gpu/torch_on_gpu.py", result.stdout), result


def test_a_machine_without_git_runs_what_was_packed(machine: Machine) -> None:
    machine.change("gpu_pack.py", '["git", ', '["no-git-here", ')
    passed(machine.check("train_kernels", script="gpu_first"))
    assert ", commit 0123456789ab-dirty\n" in machine.report()


def test_programs_find_nvidias_libraries_where_pytorch_has_them(machine: Machine) -> None:
    libraries = machine.root / "packages" / "nvidia" / "cu13" / "lib"
    libraries.mkdir(parents=True)
    prebuilt = machine.pack(program='#!/bin/sh\necho ":$LD_LIBRARY_PATH:" >>"$CALLS"\n')
    packages = {"PYTHONPATH": str(machine.root / "packages")}
    passed(machine.check("device", "--prebuilt", prebuilt, **packages))
    assert f":{libraries}:" in machine.calls.read_text()


def test_jobs_of_several_ranks_have_the_python_of_their_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "gpu")
    write_program(tmp_path / "bin" / "zerorun", '#!/bin/sh\necho "$ZERORUN_PYTHON"\n')
    assert importlib.import_module("ranks_on_gpu").run_ranks(tmp_path, 2, "script.py")
    assert capfd.readouterr().out.strip() == sys.executable


def test_the_commands_of_the_page_about_gpus_are_right(machine: Machine) -> None:
    page = (ROOT / "docs/gpu.md").read_text()
    lines = re.findall(r"^scripts/(gpu_\w+)(.*?)(?: #.*)?$", page, re.MULTILINE)
    assert {script for script, _ in lines} == {"gpu_check", "gpu_first"}
    fake_build(machine)
    release = machine.root / "build" / "release"
    (release / "CMakeCache.txt").write_text("ZERORUN_CUDA_ARCHITECTURES:STRING=90\n")
    (release / "build_id.cc").write_text("")
    for script, options in lines:
        words = [*options.replace("python3.12", "python3").split(), "--dry-run"]
        job = machine.start(*words, script=script)
        stdout, stderr = job.communicate()
        assert job.returncode == 0, stderr
        assert "would run" in stdout or "packed/programs.tar.gz: " in stdout
