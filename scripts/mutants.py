"""How good the tests are: makes small faults in the product and counts those that tests find.

    python scripts/mutants.py FOLDER [--count N] [--first K] [--seed S] [--daily]

FOLDER is a git worktree made for this alone, with a release build (`./dev build`): a fault, chosen
at random, is written into a source there, compiled, and taken back. The tests of the fault's part
run first, and with --daily all others after them, until one fails. FOLDER/build/mutants.json keeps
the results, so that a run that was ended goes on. A fault that does not compile is replaced by the
next one.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# Folder of the product: the tests of that part, a GoogleTest program or a pytest expression.
PARTS = {
    "zero": ["test_zero", "test_checkpoint"],
    "comm": ["test_comm", "test_zero"],
    "amp": ["test_amp", "test_zero"],
    "optim": ["test_optim", "test_device", "test_zero"],
    "checkpoint": ["test_checkpoint"],
    "config": ["test_config"],
    "launcher": ["test_launcher"],
    "python/zerorun/hooks": ["python"],
    "python/zerorun/shards": ["python"],
    "python/zerorun/zero": ["python"],
}
BUILD_SECONDS, TEST_SECONDS = 1200, 1800  # a fault that makes a test wait for ever is found as well

SWAPS = [
    (r" < ", " <= "), (r" > ", " >= "), (r" <= ", " < "), (r" >= ", " > "),
    (r" == ", " != "), (r" != ", " == "),
    (r" \+ ", " - "), (r" - ", " + "), (r" \+= ", " -= "), (r" \* ", " + "),
    (r" && ", " || "), (r" \|\| ", " && "), (r" and ", " or "), (r" or ", " and "),
    (r"\bif \(!", "if ("), (r"\bif not ", "if "), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"\bTrue\b", "False"), (r"\bFalse\b", "True"),
    (r"\b(\d+)\b(?!\.)", lambda found: str(int(found[1]) + 1)),
    (r"\[(\w+)\]", "[0]"),
]  # fmt: skip
CALL = re.compile(r"^(\s+)[\w.>:-]+\(.*\)(;?)$")  # a statement that is one call, on one line


@dataclass
class Fault:
    """One changed line."""

    file: str
    line: int  # from 1
    before: str
    after: str
    result: str = ""  # "found by TEST", "not found"


def code_lines(file: Path) -> list[int]:
    """Indices of the lines that may hold a fault: no comments, declarations of names, or texts."""
    chosen, quoted = [], False
    for index, line in enumerate(file.read_text().splitlines()):
        quoted ^= line.count('"""') % 2 == 1
        text = line.strip()
        starts = (
            "//",
            "#",
            "*",
            "using ",
            "import ",
            "from ",
            "template",
            "static_assert",
            "case ",
        )
        if text and not quoted and '"' not in text and not text.startswith(starts):
            chosen.append(index)
    return chosen


def changes(line: str, statement_end: str) -> list[str]:
    """All small faults that this line can have; a statement of its language ends like that."""
    code = re.split("  (?://|#) ", line, maxsplit=1)[0]
    made = []
    for pattern, swap in SWAPS:
        for found in re.finditer(pattern, code):
            new = found.expand(swap) if isinstance(swap, str) else swap(found)
            made.append(code[: found.start()] + new + code[found.end() :])
    call = CALL.match(code)
    if call and call[2] == statement_end:
        made.append(call[1] + (statement_end or "pass"))
    return [change for change in made if change != code]


def faults(root: Path, seed: int) -> list[Fault]:
    """One fault for each line that can have one, in a random order that the seed fixes."""
    chance = random.Random(seed)
    made = []
    for folder in PARTS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".cc", ".h", ".py"):
                lines = file.read_text().splitlines()
                end = "" if file.suffix == ".py" else ";"
                for index in code_lines(file):
                    if possible := changes(lines[index], end):
                        name = str(file.relative_to(root))
                        made.append(Fault(name, index + 1, lines[index], chance.choice(possible)))
    chance.shuffle(made)
    return made


def run(root: Path, seconds: int, *command: str) -> tuple[bool, str]:
    """Whether it ended well in time, and what it printed."""
    try:
        ended = subprocess.run(
            command, cwd=root, timeout=seconds, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return False, "it did not end"
    return ended.returncode == 0, ended.stdout + ended.stderr


def test_runs(part: str, daily: bool) -> list[list[str]]:
    """Commands, each of which stops at its first failed test."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "3", "--no-loadscope-reorder"]
    ctest = ["ctest", "--preset", "release", "-j", "6", "--stop-on-failure"]
    commands = [
        pytest if test == "python" else [f"build/release/tests/{test}", "--gtest_fail_fast"]
        for test in PARTS[part]
    ]
    if daily:
        commands += [ctest] + [pytest] * ("python" not in PARTS[part])
    return commands


def judge(root: Path, fault: Fault, daily: bool) -> str:
    """What becomes of a fault: "found by ...", "not found", or "" if it does not compile."""
    part = next(part for part in PARTS if fault.file.startswith(part + "/"))
    if not fault.file.endswith(".py"):
        targets = ["zerorun_tests", "zerorun_programs"] if daily else PARTS[part]
        if not run(root, BUILD_SECONDS, "ninja", "-C", "build/release", *targets)[0]:
            return ""
    for command in test_runs(part, daily):
        passed, printed = run(root, TEST_SECONDS, *command)
        if not passed:
            failed = re.search(r"\[  FAILED  \] (\S+)|FAILED (\S+)|(\S+) \.+\**Failed", printed)
            name = next(filter(None, failed.groups())) if failed else "a crash, or no end"
            return f"found by {name.rstrip(',')}"
    return "not found"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="of the list of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--daily", action="store_true", help="all tests of every day")
    options = parser.parse_args()
    root = options.folder.resolve()
    if subprocess.run(["git", "diff", "--quiet"], cwd=root, check=False).returncode:
        parser.error(f"{root} has changes that are not committed; give a worktree made for this")
    kept = root / "build" / "mutants.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    judged: list[Fault] = []
    for fault in faults(root, options.seed)[options.first :]:
        if len(judged) == options.count:
            break
        key = f"{fault.file}:{fault.line}:{fault.after}"
        if key not in known:
            source = root / fault.file
            lines = source.read_text().split("\n")
            lines[fault.line - 1] = fault.after
            original = source.read_text()
            try:
                source.write_text("\n".join(lines))
                known[key] = judge(root, fault, options.daily)
            finally:
                source.write_text(original)
            kept.write_text(json.dumps(known, indent=1))
        fault.result = known[key]
        if fault.result:
            judged.append(fault)
            print(json.dumps(asdict(fault)), flush=True)
    found = sum(fault.result != "not found" for fault in judged)
    print(f"{found} of {len(judged)} faults found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
