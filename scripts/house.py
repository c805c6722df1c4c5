#!/usr/bin/env python3
"""Figures of the sources: lines and files of each folder, small files, classes, casts.

scripts/ceilings.json has the most lines and files that each folder may have. Ceilings only go down;
a commit that raises one says why.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from class_members import CPP_SUFFIXES, MAX_MEMBERS, classes_of, with_inherited
from cpp_text import without_literals

CEILINGS = "scripts/ceilings.json"
SUFFIXES = CPP_SUFFIXES | {".py", ".md", ".js", ".css", ".cmake"}
NO_PRODUCT = {"tests", "bench", "cmake"}
SMALL_FILE = 50  # lines
ADVICE = f"make the folder smaller, or raise the ceiling in {CEILINGS}; the commit then says why"

Sizes = dict[str, dict[str, int]]  # {folder: {"files": ..., "lines": ...}}


def sources_in(root: Path) -> dict[str, str]:
    """The text of each source that git knows or does not ignore, by path."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    sources = {}
    for name in sorted(set(listed.splitlines())):
        path = root / name
        if path.is_file() and path.suffix in SUFFIXES | {""}:
            text = path.read_text(encoding="utf-8")
            if path.suffix or text.startswith("#!"):
                sources[name] = text
    return sources


def folder_of(name: str) -> str:
    """The folder that has a ceiling: the first, or in python/ the first two; `.` is the root."""
    parts = name.split("/")[:-1]
    return "/".join(parts[: 2 if parts[:1] == ["python"] else 1]) or "."


def line_count(text: str) -> int:
    return len(text.splitlines())


def sizes_of(sources: dict[str, str]) -> Sizes:
    sizes: Sizes = {}
    for name, text in sources.items():
        size = sizes.setdefault(folder_of(name), {"files": 0, "lines": 0})
        size["files"] += 1
        size["lines"] += line_count(text)
    return sizes


def problems_of(sizes: Sizes, ceilings: Sizes) -> list[str]:
    """What exceeds its ceiling."""
    problems = []
    for folder, size in sizes.items():
        if folder not in ceilings:
            problems.append(f"{folder} has no ceiling: run scripts/house.py --tighten")
            continue
        for unit, value in size.items():
            ceiling = ceilings[folder][unit]
            if value > ceiling:
                problems.append(
                    f"{folder} has {value} {unit}, {value - ceiling} above its ceiling of "
                    f"{ceiling}: {ADVICE}"
                )
    return problems


def tightened(sizes: Sizes, ceilings: Sizes) -> Sizes:
    """Ceilings at today's figures where those are lower, or where there was none."""
    return {
        folder: {unit: min(n, ceilings.get(folder, size)[unit]) for unit, n in size.items()}
        for folder, size in sizes.items()
    }


def figures_of(sources: dict[str, str]) -> dict[str, object]:
    """The figures beside those of folders."""
    cpp = {name: text for name, text in sources.items() if Path(name).suffix in CPP_SUFFIXES}
    product = {n: t for n, t in cpp.items() if n.split("/")[0] not in NO_PRODUCT}
    lines = {name: line_count(text) for name, text in sources.items()}
    code = [line.strip() for text in product.values() for line in text.splitlines()]
    classes = [c for name, text in product.items() for c in classes_of(text, name)]
    largest = sorted(((n, c.name) for n, c in with_inherited(classes)), reverse=True)
    comm = [without_literals(text) for name, text in product.items() if name.startswith("comm/")]
    kinds: Counter[str] = Counter()
    for name, count in lines.items():
        kind = "tests" if name.startswith("tests/") else Path(name).suffix.lstrip(".")
        kinds[kind] += count
    return {
        "C++ product: lines": sum(lines[name] for name in product),
        "C++ product: lines of code": sum(
            bool(line) and not line.startswith(("//", "#include")) for line in code
        ),
        "C++ product: files": len(product),
        f"C++ product: files under {SMALL_FILE} lines": sum(
            lines[name] < SMALL_FILE for name in product
        ),
        "C++ product: classes": len(classes),
        "largest classes, with inherited data members": ", ".join(
            f"{name} {count}" for count, name in largest[:5]
        ),
        f"classes with exactly {MAX_MEMBERS} data members": sum(
            MAX_MEMBERS in (one.members, total) for total, one in with_inherited(classes)
        ),
        "dynamic_casts in comm": sum(text.count("dynamic_cast<") for text in comm),
        "Python: lines": kinds["py"],
        "tests: lines": kinds["tests"],
        "documentation: lines": kinds["md"],
    }


def print_all(sizes: Sizes, ceilings: Sizes, figures: dict[str, object]) -> None:
    print(f"{'folder':16} {'files':>6} {'ceiling':>8} {'lines':>8} {'ceiling':>8}")
    for folder, size in sizes.items():
        ceiling = ceilings.get(folder, {"files": 0, "lines": 0})
        print(
            f"{folder:16} {size['files']:6} {ceiling['files']:8} "
            f"{size['lines']:8} {ceiling['lines']:8}"
        )
    print()
    for name, value in figures.items():
        print(f"{name:45} {value}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="fail if a ceiling is exceeded")
    what.add_argument(
        "--tighten", action="store_true", help="lower ceilings to today's figures; add missing ones"
    )
    options = parser.parse_args()
    file = options.root / CEILINGS
    ceilings: Sizes = json.loads(file.read_text()) if file.exists() else {}
    sources = sources_in(options.root)
    sizes = sizes_of(sources)
    if options.check:
        problems = problems_of(sizes, ceilings)
        print(*problems, sep="\n", end="\n" if problems else "")
        return 1 if problems else 0
    if options.tighten:
        rows = [f'  "{f}": {json.dumps(size)}' for f, size in tightened(sizes, ceilings).items()]
        file.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    else:
        print_all(sizes, ceilings, figures_of(sources))
    return 0


if __name__ == "__main__":
    sys.exit(main())
