"""Everything that programs, scripts and files may rely on: tests/public_names.json.

PYTHONPATH=build/release/python python scripts/public_names.py build/release/bin/zerorun --write

docs/compatibility.md says how what is in the list may change.
"""

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cpp_text import without_literals

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "public_names.json"
MODULES = (
    "zerorun",
    *(f"zerorun.{name}" for name in ["config", "consolidate", "metrics", "nn", "sequence", "zero"]),
)
FORMATS = {
    "checkpoint": ("checkpoint/format/manifest.h", r"kFormatVersion = (\d+)"),
    "program's part of a checkpoint": ("python/zerorun/program_state.py", r"_VERSION = (\d+)"),
    "tokens": ("train/data/corpus.cc", r"kVersion = (\d+)"),
    "metrics": ("docs/metrics.md", r'"zerorun_metrics": (\d+)'),
}
_DECLARED = re.compile(
    r"^(?:template <[^>]*>\s*)?(?:class|struct|enum class) (?:ZR_API )?(\w+)(?=[\s:{])(?!;)"
    r"|^ZR_API [\w:<>,&*\s]*?\b(\w+)\(|^using (\w+) =|^(?:inline )?constexpr [\w:<>]+ (\w+)",
    re.MULTILINE,
)


def parameters_of(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def members_of(thing: type) -> set[str]:
    """Without what it inherits from classes of others, as PyTorch's."""
    own = [base for base in thing.__mro__ if base.__module__.startswith("zerorun")]
    return {name for base in own for name in vars(base) if not name.startswith("_")}


def of_python() -> list[str]:
    """Functions with the names of their parameters, and classes with their public attributes."""
    found = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            thing, place = getattr(module, name), f"{module_name}.{name}"
            if inspect.isfunction(thing):
                found.append(f"{place}({', '.join(parameters_of(thing))})")
                continue
            found.append(place)
            if inspect.isclass(thing) and not issubclass(thing, Exception):
                found += [f"{place}.{member}" for member in members_of(thing)]
    return sorted(found)


def of_headers() -> list[str]:
    found = set()
    for path in (ROOT / "include" / "zerorun").glob("*.h"):
        for match in _DECLARED.finditer(without_literals(path.read_text())):
            found.add(f"{path.name}: {next(filter(None, match.groups()))}")
    return sorted(found)


def keys_of(schema: dict[str, Any], root: dict[str, Any], at: str = "") -> list[str]:
    """JSON pointers of a schema's properties."""
    found = []
    for part in (schema, *schema.get("anyOf", []), *schema.get("oneOf", [])):
        for key, below in part.get("properties", {}).items():
            pointer = f"{at}/{key}"
            found += [pointer, *keys_of(below, root, pointer)]
    return found


def of_configuration(zerorun: str) -> list[str]:
    command = [zerorun, "config", "schema"]
    schema = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return sorted(set(keys_of(schema, schema)))


def of_commands() -> list[str]:
    """From the page that a test compares with the commands."""
    found = set()
    page = (ROOT / "docs" / "command_line.md").read_text()
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        topic, _, text = part.partition("\n")
        found.add(topic)
        pattern = r"^  (\w+)  +\S" if topic == "environment" else r"(?<![\w-])(--\w+)"
        found |= {f"{topic} {option}" for option in re.findall(pattern, text, re.MULTILINE)}
    return sorted(found)


def public_names(zerorun: str) -> dict[str, Any]:
    formats = {
        name: int(re.findall(pattern, (ROOT / file).read_text())[0])
        for name, (file, pattern) in FORMATS.items()
    }
    return {
        "python": of_python(),
        "headers": of_headers(),
        "keys": of_configuration(zerorun),
        "commands": of_commands(),
        "formats": formats,
    }


if __name__ == "__main__":
    text = json.dumps(public_names(sys.argv[1]), indent=0) + "\n"
    if "--write" in sys.argv:
        LIST.write_text(text)
    else:
        sys.stdout.write(text)
