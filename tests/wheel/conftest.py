"""The wheel that `./dev wheel` has made, and environments that have it."""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from ranks import output_of

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 120


@dataclass(frozen=True)
class Environment:
    """A Python environment with zerorun in it, seen by programs that do not see this repository."""

    folder: Path
    install_s: float
    site: Path
    work: Path

    def command(self, *arguments: str | Path, hidden: bool = True) -> list[str]:
        """A program of the environment; `hidden`, for root: the repository is covered."""
        command = [str(self.folder / "bin" / str(arguments[0])), *map(str, arguments[1:])]
        if not hidden or os.geteuid() != 0:
            return command
        hide = 'mount -t tmpfs none "$0" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", hide, str(ROOT), *command]

    def run(self, *arguments: str | Path, hidden: bool = True, **variables: str) -> str:
        """Its standard output. PATH has no other zerorun, and no Python of the environment's."""
        names = ("HOME", "TMPDIR")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        own = kept | {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"} | variables
        command = self.command(*arguments, hidden=hidden)
        return output_of(*command, env=own, cwd=self.work, timeout=DEADLINE)


@pytest.fixture(scope="session")
def wheel() -> Path:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = list((ROOT / "dist").glob(f"zerorun-*-{python}-*.whl"))
    assert wheels, f"no wheel for {python} in {ROOT / 'dist'}: ./dev wheel makes it"
    return max(wheels, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """Makes an environment with nothing but pip and the wheel."""

    def make(name: str) -> Environment:
        folder = tmp_path_factory.mktemp(name) / "environment"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index"]
        begin = time.monotonic()
        subprocess.run([*pip, "--disable-pip-version-check", wheel], check=True)
        seconds = time.monotonic() - begin
        variables = {"base": str(folder), "platbase": str(folder)}
        site = Path(sysconfig.get_path("platlib", "venv", variables))
        work = folder.parent / "work"
        work.mkdir()
        return Environment(folder, seconds, site, work)

    return make


@pytest.fixture(scope="session")
def plain(install: Callable[[str], Environment]) -> Environment:
    """An environment without PyTorch."""
    return install("plain")


@pytest.fixture(scope="session")
def with_torch(install: Callable[[str], Environment]) -> Environment:
    """An environment with PyTorch: that of the tests, whose packages it links to."""
    environment = install("torch")
    for package in Path(sysconfig.get_path("platlib")).iterdir():
        if not (environment.site / package.name).exists():
            (environment.site / package.name).symlink_to(package)
    return environment
