#!/usr/bin/env python3
"""Runs clang-tidy over the product's sources, skipping those that passed before unchanged.

A source's key is a hash of everything that its result depends on: clang-tidy and its settings, the
compile command, the source, and the project's headers that it includes. Passed keys are kept as
empty files in <build>/tidy.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIDY = "clang-tidy-14"
SKIPPED = {"tests", "bench", "build"}
KERNELS = ".cu"  # nvcc's command lines are not clang's
# NVIDIA's headers of cuDNN's graphs keep clang-tidy busy for many minutes.
SKIPPED_FILES = {"examples/train/cuda/cudnn_attention.cc"}
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


def with_includes(source: Path, search: tuple[Path, ...]) -> list[Path]:
    seen = {source}
    todo = [source]
    while todo:
        for header in direct_includes(todo.pop(), search):
            if header not in seen:
                seen.add(header)
                todo.append(header)
    return sorted(seen)


def key_of(entry: dict, tool: bytes) -> str:
    folders = re.findall(r"-I\s*(\S+)", entry["command"])
    search = tuple(f for f in map(Path, folders) if f.is_relative_to(ROOT))
    digest = hashlib.sha256(tool + entry["command"].encode())
    for path in with_includes(Path(entry["file"]), search):
        digest.update(str(path).encode() + b"\0" + read(path))
    return digest.hexdigest()[:32]


def run(build: Path, source: str) -> tuple[str, bool, str]:
    # The compile commands are g++'s.
    flags = ["--quiet", "--extra-arg=-Wno-unknown-warning-option", "-p", str(build)]
    command = [TIDY, *flags, source]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return source, result.returncode == 0, result.stdout + result.stderr


def sources(build: Path) -> list[dict]:
    """Entries of the compilation database for product files, each file once."""
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.suffix == KERNELS:
            continue
        name = path.relative_to(ROOT)
        if name.parts[0] not in SKIPPED and str(name) not in SKIPPED_FILES:
            entries.setdefault(entry["file"], entry)
    return list(entries.values())


def main() -> int:
    build = ROOT / (sys.argv[1] if len(sys.argv) > 1 else "build/release")
    version = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    tool = version + (ROOT / ".clang-tidy").read_bytes()
    stamps = build / "tidy"
    stamps.mkdir(exist_ok=True)
    keys = {entry["file"]: key_of(entry, tool) for entry in sources(build)}
    for stamp in stamps.iterdir():
        if stamp.name not in keys.values():
            stamp.unlink()
    changed = [source for source, key in keys.items() if not (stamps / key).exists()]
    changed.sort(key=lambda source: -Path(source).stat().st_size)  # long ones first
    failed = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done in as_completed([pool.submit(run, build, source) for source in changed]):
            source, passed, output = done.result()
            if passed:
                (stamps / keys[source]).touch()
            else:
                failed += 1
                print(output.strip(), flush=True)
    print(f"clang-tidy: {len(changed)} of {len(keys)} sources checked, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
