"""The wheel trains on other distributions, each in a folder of its own (chroot).

Needs root and Debian's `debootstrap`, and some hundred MB of packages in build/chroots; skipped
where a mirror cannot be reached.
"""

from prelude import *

from .conftest import DEADLINE

DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
MIRROR_S = 900
# The kernel's folders, for as long as the command runs.
MOUNTED = """
mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs none "$0/dev/shm" &&
exec chroot "$0" "$@"
"""
ENTER = ("unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNTED)
# Ubuntu has no Python 3.11: there the programs alone are tried, with its C library.
DISTRIBUTIONS = {"bookworm": DEBIAN, "jammy": UBUNTU, "noble": UBUNTU}


def run(root: Path, *command: str) -> str:
    clean = ("env", "-i", "HOME=/root", "PATH=/usr/bin:/bin")
    return output_of(*ENTER, root, *clean, *command, timeout=DEADLINE)


@pytest.fixture(params=DISTRIBUTIONS)
def root(request: pytest.FixtureRequest) -> Path:
    """Its smallest system, made once."""
    name, mirror = request.param, DISTRIBUTIONS[request.param]
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap")
    if mirror == DEBIAN and sys.version_info[:2] != (3, 11):
        pytest.skip(f"{name} has Python 3.11")
    folder = ROOT / "build" / "chroots" / name
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        options = ["--variant=minbase", "--no-check-gpg"]
        options += ["--include=python3-venv"] if mirror == DEBIAN else []
        # Its script for a release that it has not heard of: all of a distribution are alike.
        scripts = Path("/usr/share/debootstrap/scripts")
        alike = scripts / ("sid" if mirror == DEBIAN else "gutsy")
        words = [name, folder, mirror, *([] if (scripts / name).exists() else [alike])]
        made = ran(["debootstrap", *options, *words], timeout=MIRROR_S)
        if made.returncode != 0:
            pytest.skip(f"debootstrap: {made.stdout[-300:]}{made.stderr[-300:]}")
        (folder / "made").touch()
    return folder


def test_the_wheel_trains_there(root: Path, wheel: Path) -> None:
    place = root / "root" / "zerorun"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "text.txt").write_text("to be or not to be, that is the question\n" * 2000)
    if DISTRIBUTIONS[root.name] == DEBIAN:
        shutil.copy(wheel, place)
        run(root, "python3", "-m", "venv", "/root/zerorun/env")
        pip = "/root/zerorun/env/bin/pip"
        run(root, pip, "install", "--no-index", f"/root/zerorun/{wheel.name}")
        command = "/root/zerorun/env/bin/zerorun"
    else:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
        for program in ("bin/zerorun", "libexec/zerorun/train"):
            (place / "zerorun" / program).chmod(0o755)
        command = "/root/zerorun/zerorun/bin/zerorun"
    options = ["--data", "/root/zerorun/text.txt", "--model", "nano", "--steps", "3"]
    launcher = [command, "--accelerator", "cpu", "--num_gpus", "2"]
    output = run(root, *launcher, "train", *options, "--save", "")
    assert "step 3/3  loss" in output
