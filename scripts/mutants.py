"""How good the tests are: makes small faults in the product and counts those that tests find.

    .venv/bin/python scripts/mutants.py [--cpp N] [--python N] [--seed S] [--jobs J] [--seconds S]

Works in build/mutants, on a copy of the commit checked out. All faults, chosen at random, are
compiled at once: `a < b` becomes `(zr_fault(7) ? (a <= b) : (a < b))`, which the variable MUTANT
decides at run time. Every test runs once to learn which faults it reaches; then each fault meets
the tests that reach it, those of its own folder first, until one fails. Tests run as root in
namespaces of their own, which end what a fault leaves. What is known is kept, so that a run that
was ended goes on, and --seconds of tests for each fault (0: all) may grow. Headers have no faults
(every test program would be compiled again), nor have lines with texts, `->` or constants.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

from cpp_text import without_comments, without_literals

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "build" / "mutants"
CODE, BUILD = HERE / "src", HERE / "src" / "build" / "release"
CPP = ["zero", "comm", "amp", "optim", "checkpoint", "config", "launcher"]
PYTHON = [f"python/zerorun/{folder}" for folder in ("hooks", "shards", "zero")]
# The test files of Python that train models, without those that compare speeds or print documents.
PYTHON_TESTS = ["cases", "torch_seam", "steps", "resume", "conversion", "consolidate"]
GROUPS = 200  # at most, of Python tests that run together
HEADER = """#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wint-in-bool-context"
#pragma GCC diagnostic ignored "-Wsign-compare"
inline char* zr_reached() {
  const char* path = std::getenv("MUTANTS_REACHED");
  const int file = path != nullptr ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
  return file < 0 ? nullptr : static_cast<char*>(::mmap(nullptr, ::lseek(file, 0, SEEK_END),
                                                 PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
}
inline bool zr_fault(int k) {
  static const int chosen = std::atoi(std::getenv("MUTANT") ? std::getenv("MUTANT") : "-1");
  static char* const reached = zr_reached();
  if (reached) reached[8 + *reinterpret_cast<int*>(reached) * COUNT + k] = 1;
  return k == chosen;
}
"""
MODULE = """import mmap, os
CHOSEN, REACHED = int(os.environ.get("MUTANT", -1)), None
if path := os.environ.get("MUTANTS_REACHED"):
    with open(path, "r+b") as file:
        REACHED = mmap.mmap(file.fileno(), 0)
def zr_fault(k):
    if REACHED is not None:
        REACHED[8 + int.from_bytes(REACHED[:4], "little") * COUNT + k] = 1
    return k == CHOSEN
"""
Tests = dict[str, dict[str, Any]]
Fault = dict[str, Any]  # file, line, start, end (offsets), old, new, dropped

# --- faults ---
TOKEN = re.compile(
    r"[A-Za-z_]\w*|\d[\w.']*|<<=|>>=|<=>|->|\+\+|--|::|\*\*|[-+*/%&|^!=<>]=|&&|\|\||<<|>>|[^\w ]"
)
PAIRS = "< <=, > >=, == !=, + -, += -=, && ||, and or, true false, True False"
SWAPS = {a: b for pair in PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
SWAPS |= {"*": "+", "is": "is not"}
STOPS = set(",;?:=\n") | {f"{op}=" for op in "+-*/%&|^"} | {"<<=", ">>=", "#"}
PYTHON_WORDS = "return if elif else for while assert yield with as raise ::"
PYTHON_STOPS = STOPS | set(PYTHON_WORDS.split())
STOPS |= {"{", "}", "return", "throw", "else", "do", "case", "co_return"}
NO_FAULT = re.compile(
    r"\b(constexpr|template|static_assert|case|enum|using|operator|def|import)\b|[#\"@]|->"
    r"|^ *\w+: "
)
CALL = re.compile(r" *(\w[\w.>:-]*\(.*\)(;| *\n)) *$")  # a statement that is one call, on one line


def blanked(text: str, python: bool) -> tuple[str, str]:
    """Without comments, and also without strings and newlines other than those that end a statement
    of Python; nothing moves."""
    if not python:
        return without_comments(text), without_literals(text).replace("\n", " ")
    code, masked = list(text), list(text)
    starts = [0, *(at.end() for at in re.finditer("\n", text))]
    for kind, _, (row, column), (last, end), _ in tokenize.generate_tokens(StringIO(text).readline):
        if kind in (tokenize.STRING, tokenize.COMMENT, tokenize.NL):
            place = slice(starts[row - 1] + column, starts[last - 1] + end)
            masked[place] = " " * (place.stop - place.start)
            code[place] = masked[place] if kind == tokenize.COMMENT else code[place]
    return "".join(code), "".join(masked)


def bound(tokens: list[re.Match[str]], index: int, step: int, stops: set[str]) -> int:
    """The first or last token of the expression around one: what stands between delimiters."""
    opening, closing = ("([{", ")]}") if step > 0 else (")]}", "([{")
    depth, behind = 0, index
    while 0 <= index + step < len(tokens):
        text = tokens[index + step][0]
        if depth == 0 and (text in stops or text in closing):
            break
        if step < 0 and depth == 0 and text in ("if", "for", "while", "switch", "constexpr"):
            return behind
        if text in opening and depth == 0:
            behind = index  # what a condition in brackets stands before
        depth += (text in opening) - (text in closing)
        index += step
    return index


def faults_of(text: str, python: bool) -> Iterator[Fault]:
    """All small faults of a source; "new" is None for a call that is left out."""
    code, masked = blanked(text, python)
    lines, tokens = code.splitlines(keepends=True), list(TOKEN.finditer(masked))
    plain = [NO_FAULT.search(line) is None for line in lines]
    stops = PYTHON_STOPS if python else STOPS
    for index, token in enumerate(tokens[2:-1], 2):
        before, after, now = tokens[index - 1][0], tokens[index + 1][0], token[0]
        beside = masked[token.start() - 1] + masked[token.end()]
        swapped = (beside == "  " and after != "not") or now.lower() in ("true", "false")
        new = SWAPS.get(now) if swapped else None
        if now.isdigit() and beside[0] != "<" and beside[1] != ">":
            new = str(int(now) + 1)
        elif now in ("!", "not"):
            new = ""
        elif before == "[" and after == "]" and now.isidentifier():
            new = "0" if re.match(r"[\w)\]]", tokens[index - 2][0]) else None
        assigns = python and now in ("+=", "-=")  # no expression
        if new is not None and not assigns and plain[text.count("\n", 0, token.start())]:
            start = tokens[bound(tokens, index, -1, stops)].start()
            end = tokens[bound(tokens, index, 1, stops)].end()
            new = code[start : token.start()] + new + code[token.end() : end]
            yield {"start": start, "end": end, "old": code[start:end], "new": new}
    offset = 0
    for line, allowed in zip(lines, plain, strict=True):
        call = allowed and CALL.match(masked[offset : offset + len(line)])
        if call and masked[:offset].rstrip(" ").endswith(("\n", ";", "{", "}", ":", ")")):
            start, end = offset + call.start(1), offset + len(call[0].rstrip())
            yield {"start": start, "end": end, "old": code[start:end], "new": None}
        offset += len(line)


# --- the copy with all faults ---
def original(file: str) -> str:
    commit = (HERE / "commit").read_text()
    return subprocess.check_output(["git", "show", f"{commit}:{file}"], cwd=ROOT, text=True)


def chosen(folders: list[str], suffix: str, count: int, seed: int) -> list[Fault]:
    """Faults at random, at most one a line, of which none is within another."""
    chance, found, kept = random.Random(seed), [], []
    for file in sorted(f for folder in folders for f in (CODE / folder).rglob(f"*{suffix}")):
        text, by_line = file.read_text(), {}
        for fault in faults_of(text, suffix == ".py"):
            line = text.count("\n", 0, fault["start"]) + 1
            fault |= {"file": str(file.relative_to(CODE)), "line": line, "dropped": False}
            by_line.setdefault(line, []).append(fault)
        found += [chance.choice(by_line[line]) for line in sorted(by_line)]
    chance.shuffle(found)
    for fault in found:
        same = (other for other in kept if other["file"] == fault["file"])
        if all(fault["end"] <= o["start"] or o["end"] <= fault["start"] for o in same):
            kept.append(fault)
    return kept[:count]


def write(faults: list[Fault], file: str) -> None:
    """The copy's source with those of its faults that compile; line numbers grow by at most one."""
    text = original(file)
    numbered = [(k, f) for k, f in enumerate(faults) if f["file"] == file and not f["dropped"]]
    for k, fault in sorted(numbered, key=lambda pair: -pair[1]["start"]):
        old, new = fault["old"], (fault["new"] or "").replace("\n", " ")
        if file.endswith(".py"):
            put = f"({new or None} if zr_fault({k}) else {old})"
        elif fault["new"] is None:
            put = f"{{ if (zr_fault({k})) {{}} else {old} }}"
        else:
            put = f"(zr_fault({k}) ? ({new}) : ({old}))"
        text = text[: fault["start"]] + put + text[fault["end"] :]
    if file.endswith(".py"):
        first = re.compile(r"(?m)^(?=(import|from (?!__))\b)")
        text = first.sub("from zr_fault import zr_fault; ", text, count=1)
    else:
        text = f'#include "{HERE}/fault.h"\n{text}'
    (CODE / file).write_text(text)


def build(faults: list[Fault]) -> None:
    """Builds the copy; what does not compile is dropped."""
    tests = ["zerorun_tests"] if any(fault["file"].endswith(".cc") for fault in faults) else []
    command = [CODE / "dev", "build", "-k", "0", "zerorun_programs", *tests]
    while (
        ended := subprocess.run(command, capture_output=True, text=True, check=False)
    ).returncode:
        wrong, printed = set(), ended.stdout + ended.stderr
        for path, line in re.findall(r"(?m)^(\S+?):(\d+):\d+: (?:fatal )?error: ", printed):
            file = (BUILD / path).resolve()
            above = [
                (fault["line"], k)
                for k, fault in enumerate(faults)
                if CODE / fault["file"] == file
                and fault["line"] < int(line)
                and not fault["dropped"]
            ]
            wrong |= {max(above)[1]} if above else set()
        if not wrong:
            sys.exit(f"the copy does not compile:\n{printed[-6000:]}")
        print(f"{len(wrong)} faults do not compile", flush=True)
        for k in wrong:
            faults[k]["dropped"] = True
        for file in {faults[k]["file"] for k in wrong}:
            write(faults, file)
        (HERE / "faults.json").write_text(json.dumps(faults, indent=1))


def prepare(cpp: int, python: int, seed: int) -> list[Fault]:
    """Makes the copy, with a third more C++ faults than wanted, as some do not compile."""
    kept = HERE / "faults.json"
    if kept.exists():
        return json.loads(kept.read_text())
    CODE.mkdir(parents=True)
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    (HERE / "commit").write_text(commit)
    archive = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
    subprocess.run(["tar", "-x", "-C", CODE], input=archive, check=True)
    (CODE / ".venv").symlink_to(ROOT / ".venv")
    faults = chosen(CPP, ".cc", cpp * 4 // 3, seed) + chosen(PYTHON, ".py", python, seed)
    (BUILD / "python").mkdir(parents=True)
    for file, text in ((HERE / "fault.h", HEADER), (BUILD / "python" / "zr_fault.py", MODULE)):
        file.write_text(text.replace("COUNT", str(len(faults))))
    for file in {fault["file"] for fault in faults}:
        write(faults, file)
    kept.write_text(json.dumps(faults, indent=1))
    return faults


# --- tests ---
ALONE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
         'mount -t tmpfs none /dev/shm && mount --bind "$0" /tmp && "$@"; exit $?']  # fmt: skip
PYTEST = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-n", "0"]


def ran(command: list[str], seconds: float, fault: int, reached: str = "") -> tuple[bool, str]:
    """Whether it ended well in time, and what it printed; nothing of it stays."""
    variables = {"MUTANT": str(fault), "MUTANTS_REACHED": reached, "OMP_WAIT_POLICY": "passive"}
    variables |= {"PYTHONPATH": str(ROOT / "scripts")}  # of the plugin below
    with tempfile.TemporaryDirectory(dir=HERE) as folder, tempfile.TemporaryFile() as output:
        options: Any = {"cwd": CODE, "env": os.environ | variables, "stderr": output}
        with subprocess.Popen([*ALONE, folder, *command], stdout=output, **options) as test:
            try:
                test.wait(seconds)
            except subprocess.TimeoutExpired:
                test.kill()
        output.seek(0)
        return test.returncode == 0, output.read().decode(errors="replace")


# As a plugin of pytest, this module tells processes that reach faults which group of tests runs.
ROWS: dict[str, dict[str, Any]] = {}


def pytest_runtest_setup(item: Any) -> None:
    from conftest import group_of

    new = {"row": len(ROWS), "ids": [], "seconds": 0, "passed": True}
    row = ROWS.setdefault(group_of(item), new)
    row["ids"].append(item.nodeid)
    with open(os.environ["MUTANTS_REACHED"], "r+b") as file:
        file.write(struct.pack("i", row["row"]))


def pytest_runtest_logreport(report: Any) -> None:
    row = next(row for row in ROWS.values() if report.nodeid in row["ids"])
    row["seconds"] += report.duration
    row["passed"] &= not report.failed
    Path(os.environ["MUTANTS_REACHED"] + ".json").write_text(json.dumps(ROWS))


def recorded(command: list[str], count: int, rows: int = 1) -> dict[str, Any]:
    """A run of tests without fault: its seconds, and the faults that each of its rows reached."""
    with tempfile.NamedTemporaryFile(dir=HERE) as file:
        file.write(bytes(8 + rows * count))
        file.flush()
        began = time.monotonic()
        passed, printed = ran(command, 3000, -1, file.name)
        data, groups = Path(file.name).read_bytes()[8:], Path(file.name + ".json")
        reached = [[k for k in range(count) if data[r * count + k]] for r in range(rows)]
        if rows == 1:
            return {"seconds": time.monotonic() - began, "passed": passed, "reached": reached[0]}
        if not groups.exists():
            sys.exit(f"no test of Python ran:\n{printed[-6000:]}")
        told = json.loads(groups.read_text())
        groups.unlink()
        return {name: row | {"reached": reached[row["row"]]} for name, row in told.items()}


def gtest(name: str) -> list[str]:
    program, test = name.split(":", 1)
    return [str(BUILD / "tests" / program), f"--gtest_filter={test}"]


def record(count: int, jobs: int) -> Tests:
    """All tests, "program:name" or a group of pytest's, with the faults that they reach."""
    kept, names = HERE / "tests.json", []
    tests: Tests = json.loads(kept.read_text()) if kept.exists() else {}
    for program in sorted((BUILD / "tests").glob("test_*")):
        if program.is_file() and os.access(program, os.X_OK) and "gpu" not in program.name:
            listed = subprocess.check_output([program, "--gtest_list_tests"], text=True)
            for suite, lines in re.findall(r"(?m)^(\S+\.).*\n((?: .*\n)+)", listed):
                found = re.findall(r"(?m)^ +(\S+)", lines)
                names += [f"{program.name}:{suite}{test}" for test in found]
    names = [name for name in names if name not in tests and "DISABLED_" not in name]
    try:
        with ThreadPoolExecutor(jobs) as pool:
            for name, test in zip(
                names, pool.map(lambda n: recorded(gtest(n), count), names), strict=True
            ):
                tests[name] = test
        if not any("ids" in test for test in tests.values()):
            files = [f"tests/python/test_{name}.py" for name in PYTHON_TESTS]
            tests |= recorded([*PYTEST, "-p", "mutants", *files], count, GROUPS)
    finally:
        kept.write_text(json.dumps(tests))
    return {name: test for name, test in tests.items() if test["passed"]}


def judge(k: int, own: str, tests: Tests, limit: float) -> str:
    """What becomes of a fault: "found by TEST", "not reached", or "not found"."""
    reaching = {name: test for name, test in tests.items() if k in test["reached"]}
    spent, ids = 0.0, []
    shortest = sorted(reaching, key=lambda name: reaching[name]["seconds"])
    for name in sorted(shortest, key=lambda name: not name.startswith(own)):
        seconds = reaching[name]["seconds"]
        if limit and spent + seconds > limit:
            continue
        spent, twice = spent + seconds, [10 + 5 * seconds] * 2
        if "ids" in reaching[name]:
            ids += reaching[name]["ids"]
        elif not any(ran(gtest(name), s, k)[0] for s in twice) and ran(gtest(name), 300, -1)[0]:
            return f"found by {name}"
    passed, printed = ran([*PYTEST, "-x", *ids], 60 + 3 * spent, k) if ids else (True, "")
    if not passed:
        failed = re.search(r"(?m)^(?:FAILED|ERROR) (\S+)", printed)
        return f"found by {failed[1] if failed else 'a test that did not end'}"
    left = sum(test["seconds"] for test in reaching.values()) - spent
    return f"not found, {left:.0f} s of tests left" if reaching else "not reached"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cpp", type=int, default=230, help="faults in C++")
    parser.add_argument("--python", type=int, default=70, help="faults in Python")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="of tests for a fault; 0: all")
    options = parser.parse_args()
    faults = prepare(options.cpp, options.python, options.seed)
    build(faults)
    tests = record(len(faults), options.jobs)
    kept, table = HERE / "results.json", {}
    known = json.loads(kept.read_text()) if kept.exists() else {}
    good = [k for k, fault in enumerate(faults) if not fault["dropped"]]
    python = [k for k in good if faults[k]["file"].endswith(".py")]
    cpp = [k for k in good if k not in python][: options.cpp]

    def one(k: int) -> str:
        result = known.get(str(k), "")
        own = f"test_{faults[k]['file'].split('/')[0]}:"
        return result if "found by" in result else judge(k, own, tests, options.seconds)

    with ThreadPoolExecutor(options.jobs) as pool:
        for k, result in zip(cpp + python, pool.map(one, cpp + python), strict=True):
            known[str(k)] = result
            kept.write_text(json.dumps(known, indent=1))
            print(f"{faults[k]['file']}:{faults[k]['line']}: {result}", flush=True)
            folder = next(f for f in CPP + PYTHON if faults[k]["file"].startswith(f + "/"))
            table.setdefault(folder, Counter())[" ".join(result.split(",")[0].split()[:2])] += 1
    for folder, counts in table.items():
        print(f"{folder:24} {sum(counts.values()):4} faults, {dict(counts)}")


if __name__ == "__main__":
    main()
