"""How long tests took in the last runs on this machine, whichever clone ran them.

    python scripts/test_durations.py keep RESULTS   reads RESULTS/*.xml (JUnit), one file a suite
    python scripts/test_durations.py copy FILE      what was known before a run, for pytest
    python scripts/test_durations.py order BUILD    tells ctest, which starts the longest ones first
    python scripts/test_durations.py slowest [N]    prints the N longest, and each suite's sum
    python scripts/test_durations.py failed RESULTS prints the names of what failed

The file is ~/.cache/zerorun/test_durations.json: {suite: {test: seconds}}.
"""

import json
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

Durations = dict[str, dict[str, float]]


def kept_in() -> Path:
    """The file, in a folder that a clean clone finds, too."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "zerorun" / "test_durations.json"


def load() -> Durations:
    """What is known; nothing if the file is missing or damaged: it only orders tests."""
    try:
        known = json.loads(kept_in().read_text())
        return {suite: dict(tests) for suite, tests in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def of_report(report: Path) -> dict[str, float]:
    """Seconds of each test that ran, by the name that its runner knows it by."""
    tests = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 (written by our own run)
        if case.find("skipped") is None:
            name, group = case.get("name", ""), case.get("classname", "")
            tests[name if group in ("", name) else f"{group}::{name}"] = float(case.get("time", 0))
    return tests


def keep(results: Path) -> None:
    """Replaces what is known of the tests that ran; part of a suite leaves the rest as it was."""
    known = load()
    for report in results.glob("*.xml"):
        known.setdefault(report.stem, {}).update(of_report(report))
    file = kept_in()
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(known, indent=0))
    written.replace(file)


def order(build: Path) -> None:
    """Writes the file in which ctest keeps what tests cost: `name runs seconds` in each line."""
    tests = load().get(build.name, {})
    costs = build / "Testing" / "Temporary" / "CTestCostData.txt"
    costs.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} 1 {seconds:.3f}" for name, seconds in tests.items()]
    costs.write_text("\n".join([*lines, "---", ""]))


def print_slowest(count: int) -> None:
    """The longest tests of all suites, then what each suite's tests take one after the other."""
    known = load()
    tests = [(t, suite, name) for suite in known for name, t in known[suite].items()]
    for seconds, suite, name in sorted(tests, reverse=True)[:count]:
        print(f"{seconds:8.1f} s  {suite:9} {name}")
    for suite, durations in sorted(known.items()):
        total = sum(durations.values())
        print(f"{total:8.0f} s  {suite:9} all {len(durations)} tests, one after the other")


def print_failed(results: Path) -> None:
    """The names alone, for the end of a long run whose beginning nobody sees."""
    print("\nfailed:")
    for report in sorted(results.glob("*.xml")):
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 (written by our own run)
            if any(case.find(kind) is not None for kind in ("failure", "error")):
                print(f"  {report.stem:9} {case.get('classname')}::{case.get('name')}")
    for report in sorted(results.glob("*.txt")):
        for status, _, name in (row.partition(" ") for row in report.read_text().splitlines()):
            if status == "fail":
                print(f"  {report.stem:9} {name}")


def main() -> int:
    """Runs the command in the first argument."""
    match sys.argv[1:]:
        case ["keep", results]:
            keep(Path(results))
        case ["copy", file]:
            Path(file).write_text(json.dumps(load()))
        case ["order", build]:
            order(Path(build))
        case ["failed", results]:
            print_failed(Path(results))
        case ["slowest", *count]:
            print_slowest(int(count[0]) if count else 30)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
