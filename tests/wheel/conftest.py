"""The wheel that `./dev wheel` has made, and environments that have it."""

import sysconfig

from prelude import *

DEADLINE = 120


class Environment:
    """A Python environment with nothing but pip and the wheel in it, for programs that do not see
    this repository."""

    def __init__(self, place: Path, wheel: Path) -> None:
        self.folder, self.work = place / "environment", place / "work"
        self.work.mkdir()
        output_of(sys.executable, "-m", "venv", self.folder)
        pip = [self.folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index"]
        begin = time.monotonic()
        output_of(*pip, "--disable-pip-version-check", wheel)
        self.install_s = time.monotonic() - begin
        variables = {"base": str(self.folder), "platbase": str(self.folder)}
        self.site = Path(sysconfig.get_path("platlib", "venv", variables))

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
def plain(wheel: Path, tmp_path_factory: Folders) -> Environment:
    return Environment(tmp_path_factory.mktemp("plain"), wheel)


@pytest.fixture(scope="session")
def with_torch(wheel: Path, tmp_path_factory: Folders) -> Environment:
    """An environment with PyTorch: that of the tests, whose packages it links to."""
    environment = Environment(tmp_path_factory.mktemp("torch"), wheel)
    for package in Path(sysconfig.get_path("platlib")).iterdir():
        if not (environment.site / package.name).exists():
            (environment.site / package.name).symlink_to(package)
    return environment
