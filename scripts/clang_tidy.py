#!/usr/bin/env python3
"""Runs clang-tidy over the product's sources, skipping those that passed before unchanged.

The sources of a directory are looked at as one that includes them all, in an eighth of the time
that they take one by one. A group's key is a hash of everything that its result depends on:
clang-tidy and its settings, the compile command, the sources, and the project's headers that they
include. Passed keys are kept as empty files in <build>/tidy.
"""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIDY = "clang-tidy-14"
SKIPPED = {"tests", "bench", "build"}
KERNELS = ".cu"  # nvcc's command lines are not clang's
# NVIDIA's headers of cuDNN's graphs keep clang-tidy busy for many minutes.
SKIPPED_FILES = {"train/cuda/cudnn_attention.cc"}
# Fakes have helpers of the same names, so they cannot be read together, and attributes of GCC.
SKIPPED_FOLDERS = {"testing/fake_cuda"}
# Sources that Highway includes once per instruction set cannot share a file.
PER_TARGET = b"hwy/foreach_target.h"
INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(?:include|define[ \t]+HWY_TARGET_INCLUDE)[ \t]*"([^"]+)"', re.M
)


@lru_cache
def read(path: Path) -> bytes:
    return path.read_bytes()


@lru_cache
def direct_includes(path: Path, search: tuple[Path, ...]) -> tuple[Path, ...]:
    found = []
    for name in INCLUDE.findall(read(path).decode()):
        candidates = [path.parent / name, *(folder / name for folder in search)]
        found += [c.resolve() for c in candidates if c.is_file()][:1]
    return tuple(found)


def with_includes(sources: list[Path], search: tuple[Path, ...]) -> list[Path]:
    seen = set(sources)
    todo = list(sources)
    while todo:
        for header in direct_includes(todo.pop(), search):
            if header not in seen:
                seen.add(header)
                todo.append(header)
    return sorted(seen)


class Group:
    """Sources of one directory with the same compile command."""

    def __init__(self, name: str, command: list[str], sources: list[Path]) -> None:
        self.name, self.command, self.sources = name, command, sources

    def key(self, tool: bytes) -> str:
        command = " ".join(self.command)
        folders = re.findall(r"-I\s*(\S+)", command)
        search = tuple(f for f in map(Path, folders) if f.is_relative_to(ROOT))
        digest = hashlib.sha256(tool + command.encode())
        for path in with_includes(self.sources, search):
            digest.update(str(path).encode() + b"\0" + read(path))
        return digest.hexdigest()[:32]

    def check(self, folder: Path) -> tuple[bool, str]:
        joined = folder / f"{self.name}.cc"
        joined.write_text("".join(f'#include "{source}"\n' for source in self.sources))
        checks = "-bugprone-suspicious-include"  # of a source
        # The compile commands are g++'s.
        flags = ["--quiet", f"--checks={checks}", "--extra-arg=-Wno-unknown-warning-option"]
        command = [TIDY, f"--config-file={ROOT}/.clang-tidy", *flags, str(joined), "--"]
        result = subprocess.run(
            [*command, *self.command], capture_output=True, text=True, check=False
        )
        return result.returncode == 0, result.stdout + result.stderr


def flags_of(entry: dict) -> tuple[str, ...]:
    """What of a compile command is the same for other sources."""
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if word.startswith("-")) :]
    for option in ("-o", "-c"):
        at = words.index(option)
        del words[at : at + 2]
    return tuple(words)


def groups(build: Path) -> list[Group]:
    """The product files of the compilation database, each once."""
    seen = set()
    found = defaultdict(list)
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.suffix == KERNELS or path in seen:
            continue
        name = path.relative_to(ROOT)
        if (
            name.parts[0] in SKIPPED
            or str(name) in SKIPPED_FILES
            or str(name.parent) in SKIPPED_FOLDERS
        ):
            continue
        seen.add(path)
        alone = str(name) if PER_TARGET in read(path) else ""
        found[name.parent, flags_of(entry), alone].append(path)
    return [
        Group(f"{str(folder).replace('/', '-')}-{number}", list(flags), sources)
        for number, ((folder, flags, _), sources) in enumerate(found.items())
    ]


def main() -> int:
    build = ROOT / (sys.argv[1] if len(sys.argv) > 1 else "build/release")
    version = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    tool = version + (ROOT / ".clang-tidy").read_bytes()
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    keys = {group.key(tool): group for group in groups(build)}
    for stamp in folder.iterdir():
        if stamp.name not in keys:
            stamp.unlink()
    changed = {key: group for key, group in keys.items() if not (folder / key).exists()}
    longest_first = sorted(changed, key=lambda key: -len(changed[key].sources))
    failed = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {pool.submit(changed[key].check, folder): key for key in longest_first}
        for done in as_completed(running):
            passed, output = done.result()
            if passed:
                (folder / running[done]).touch()
            else:
                failed += 1
                print(output.strip(), flush=True)
    print(f"clang-tidy: {len(changed)} of {len(keys)} groups checked, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
