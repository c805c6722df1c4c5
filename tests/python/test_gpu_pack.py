"""What scripts/gpu_check packs for other machines, and for which Python."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from gpu_machine import PROGRAMS, Machine, write_program
from ranks import passed, ran


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
    cache.write_text("ZERORUN_CUDA_ARCHITECTURES:STRING=80\n")
    refused = machine.check("--pack", "packed")
    assert refused.returncode == 1
    assert "is for GPUs of 80, expected 90: ZERORUN_CUDA_ARCHITECTURES=90" in refused.stderr
    cache.write_text("ZERORUN_CUDA_ARCHITECTURES:STRING=80;90\n")
    refused = machine.check("--pack", "packed", "--python", "python3")
    assert refused.returncode == 1
    assert "of other sources or settings" in refused.stderr  # it would refuse the packed backend
    (cache.parent / "build_id.cc").write_text("of one build")
    for command in ("init -q", "add scripts", "-c user.name=a -c user.email=a@b commit -qm a"):
        subprocess.run(["git", *command.split()], cwd=machine.root, check=True)
    target = machine.root / "packed"
    result = passed(machine.check("--pack", target, "--python", machine.tools / "python3"))
    assert "for 80;90" in result.stdout
    assert Path(module).name in result.stdout
    with tarfile.open(target / "programs.tar.gz") as archive:
        files = {member.name.removeprefix("./") for member in archive if member.isfile()}
        commit = archive.extractfile("./commit").read().decode().strip()
    package = {module, "python/zerorun/__init__.py", "python/zerorun/_C.pyi"}
    rest = {"commit", *package, *PROGRAMS}
    assert {file for file in files if not file.startswith("system/")} == rest
    head = ["git", "rev-parse", "--short=12", "HEAD"]
    assert commit == subprocess.check_output(head, cwd=machine.root, text=True).strip()


def test_python_is_the_one_whose_pytorch_sees_the_gpu(machine: Machine) -> None:
    own = machine.root / ".venv" / "bin" / "python"
    write_program(own, "#!/bin/sh\n")
    environment = os.environ | {"PATH": f"{machine.tools}:{os.environ['PATH']}"}
    for sees, expected in (("True", "with_gpu/python3"), ("False", ".venv/bin/python")):
        folder = machine.root / "with_gpu"
        package = f"class cuda:\n    is_available = staticmethod(lambda: {sees})\n"
        write_program(folder / "torch.py", package)
        if not (folder / "python3").exists():
            (folder / "python3").symlink_to(sys.executable)
        command = [folder / "python3", machine.root / "scripts" / "gpu_check", "--dry-run", "torch"]
        result = ran(command, env=environment | {"PYTHONPATH": str(folder)})
        assert re.search(rf"`\S*{expected} tests/gpu/torch_on_gpu.py", result.stdout), result


def test_a_machine_without_git_runs_what_was_packed(machine: Machine) -> None:
    machine.change("gpu_pack.py", '["git", ', '["no-git-here", ')
    passed(machine.check("train_kernels", script="gpu_first"))
    assert ", commit 0123456789ab-dirty\n" in machine.report()


def test_the_commands_of_the_page_about_gpus_are_right(machine: Machine, root: Path) -> None:
    lines = re.findall(
        r"^scripts/(gpu_\w+)(.*?)(?: #.*)?$", (root / "docs/gpu.md").read_text(), re.M
    )
    assert {script for script, _ in lines} == {"gpu_check", "gpu_first"}
    for script, options in lines:
        words = [*options.replace("python3.12", "python3").split(), "--dry-run"]
        if "--pack" in words:
            fake_build(machine)
            release = machine.root / "build" / "release"
            (release / "CMakeCache.txt").write_text("ZERORUN_CUDA_ARCHITECTURES:STRING=90\n")
            (release / "build_id.cc").write_text("")
        job = machine.start(*words, script=script)
        stdout, stderr = job.communicate()
        assert job.returncode == 0, stderr
        assert "would run" in stdout or "packed/programs.tar.gz: " in stdout
