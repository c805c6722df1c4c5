"""Every text of an error or warning of the program, from its sources, and the page of them.

`python scripts/error_texts.py --write` writes python/zerorun/explain/messages.txt, which
`zerorun explain` reads, and docs/troubles.md; `--check` tells whether they are up to date. A text
belongs to the entry of python/zerorun/explain/entries.md whose rule fits it. The rules of an entry
are in a comment below its heading: `texts:` regular expressions, `files:` beginnings of paths,
`kinds:` classes of errors. A text decides before a file, a longer path before a shorter one, and a
file before a kind. A text without an entry is an error.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cpp_text import cpp_files, without_comments, without_literals

ROOT = Path(__file__).resolve().parents[1]
EXPLAIN = ROOT / "python" / "zerorun" / "explain"
ENTRIES, MESSAGES = EXPLAIN / "entries.md", EXPLAIN / "messages.txt"
PAGE = ROOT / "docs" / "troubles.md"
CPP = "amp checkpoint comm config core device launcher offload optim os python tools train zero"

_CALL = re.compile(
    r"\bfail<(?P<fail>\w+)>\(|\bthrow (?P<throw>\w*Error)\(|(?P<check>\bZR_CHECK)\("
    r"|problems_?\.(?P<add>add)\(|\.(?P<member>fail|refuse)\(|(?<![\w.>:])(?P<own>fail|refuse)\("
    r"|\blog\((?P<log>LogLevel::(?:error|warning))\b"
)
# Functions in these files return what is wrong; others throw it.
_RETURNED = (
    "checkpoint/loading/model_match.cc",
    "comm/hierarchical/",
    "comm/nccl/peers.cc",
    "config/",
    "launcher/control/",
    "launcher/hosts/",
    "launcher/launch.cc",
    "launcher/program.cc",
    "launcher/ranks/cuda_probe.cc",
    "launcher/ranks/report.cc",
    "optim/lr_schedule.cc",
    "zero/gradients/gradient_norm.cc",
    "zero/timeline/straggler_watch.cc",
)
_FEWEST_WORDS = 4  # fewer are parts of a text
_FORMAT = re.compile(r"(?:\breturn |\bsay\(|fmt::format\()\s*(?=R?\")")
_LITERAL = re.compile(r'R"(\w*)\((.*?)\)\1"|"((?:[^"\\\n]|\\.)*)"', re.DOTALL)
_FIELD = re.compile(r"\{[^{}]*\}")
_SCAFFOLD = "{}:{}: {} [{}]"


class Text(NamedTuple):
    text: str  # with {} for each value
    kind: str
    file: str


class Entry(NamedTuple):
    anchor: str
    heading: str
    texts: list[re.Pattern[str]]
    files: list[str]
    kinds: list[str]
    body: str


def _joined(source: str) -> str:
    """The first run of adjacent literals in C++ arguments."""
    found, end = "", None
    for literal in _LITERAL.finditer(source):
        if end is not None and source[end : literal.start()].strip():
            break
        raw = literal[2]
        found += raw if raw is not None else re.sub(r"\\(.)", r"\1", literal[3].replace("\\n", " "))
        end = literal.end()
    return found


def _arguments(blank: str, start: int) -> int:
    """Where the parenthesis before `start` closes."""
    depth = 1
    for index in range(start, len(blank)):
        depth += {"(": 1, ")": -1}.get(blank[index], 0)
        if depth == 0:
            return index
    return len(blank)


def _of_cpp(path: Path) -> Iterator[Text]:
    name = path.relative_to(ROOT).as_posix()
    text, blank = without_comments(path.read_text()), without_literals(path.read_text())
    for call in _CALL.finditer(text):
        kind = call["fail"] or call["throw"] or (call["check"] and "InternalError") or ""
        yield Text(_joined(text[call.end() : _arguments(blank, call.end())]), kind, name)
    if name.startswith(_RETURNED):
        for place in _FORMAT.finditer(text):
            found = _joined(text[place.end() :])
            if len(found.split()) >= _FEWEST_WORDS:
                yield Text(found, "", name)


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "{}"
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return "{}"


def _of_python(path: Path) -> Iterator[Text]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        if called.endswith("Error") or called == "warn":
            yield Text(_template(node.args[0]), called, path.relative_to(ROOT).as_posix())


def collected() -> list[Text]:
    """Each text once, those that say nothing but values left out."""
    found: dict[str, Text] = {}
    every = [text for path in cpp_files(ROOT, CPP.split()) for text in _of_cpp(path)]
    for path in sorted((ROOT / "python" / "zerorun").rglob("*.py")):
        every.extend(_of_python(path))
    for text in every:
        plain = re.sub(r"\s+", " ", _FIELD.sub("{}", text.text)).strip()
        if len(re.findall(r"[A-Za-z]{2,}", plain)) >= 2 and plain != _SCAFFOLD:
            found.setdefault(plain, text._replace(text=plain))
    return list(found.values())


def entries(source: str) -> list[Entry]:
    found = []
    for part in re.split(r"^(?=## )", source, flags=re.MULTILINE)[1:]:
        head = re.match(r"## (.*) \{ #([\w-]+) \}\n", part)
        rules = re.search(r"<!--\n(.*?)-->\n", part, re.DOTALL)
        if head is None or rules is None:
            raise SystemExit(f"{ENTRIES}: no anchor or no rules: {part[:60]}")
        values: dict[str, list[str]] = {"texts": [], "files": [], "kinds": []}
        for line in rules[1].splitlines():
            name, _, value = line.partition(": ")
            values[name].append(value)
        words = {name: " ".join(values[name]).split() for name in ("files", "kinds")}
        patterns = [re.compile(text) for text in values["texts"]]
        body = part[head.end() :].replace(rules[0], "").strip("\n")
        found.append(Entry(head[2], head[1], patterns, words["files"], words["kinds"], body))
    return found


def entry_of(text: Text, known: list[Entry]) -> str | None:
    """The anchor of the entry to which a text belongs."""
    for entry in known:
        if any(pattern.search(text.text) for pattern in entry.texts):
            return entry.anchor
    places = [(file, entry) for entry in known for file in entry.files]
    places = [place for place in places if text.file.startswith(place[0])]
    if text.kind != "InternalError" and places:
        return max(places, key=lambda place: len(place[0]))[1].anchor
    return next((entry.anchor for entry in known if text.kind in entry.kinds), None)


def outputs() -> dict[Path, str]:
    source = ENTRIES.read_text()
    known = entries(source)
    texts = collected()
    owners = {text.text: entry_of(text, known) for text in texts}
    lost = [text for text in texts if owners[text.text] is None]
    if lost:
        listed = "\n".join(f"  {text.file}: {text.kind}: {text.text}" for text in lost)
        raise SystemExit(f"these error texts have no entry in {ENTRIES}:\n{listed}")
    lines = sorted(f"{anchor}\t{text}" for text, anchor in owners.items())
    page = [re.split(r"^## ", source, maxsplit=1, flags=re.MULTILINE)[0].strip()]
    for entry in known:
        own = sorted(text for text, anchor in owners.items() if anchor == entry.anchor)
        page += [f'<a id="{entry.anchor}"></a>', f"## {entry.heading}", entry.body]
        block = "\n".join(f"    {text}" for text in own)
        page.append(
            f'<details markdown="1"><summary>{len(own)} texts</summary>\n\n{block}\n\n</details>'
        )
    return {MESSAGES: "\n".join(lines) + "\n", PAGE: "\n\n".join(page) + "\n"}


def main() -> int:
    stale = [path for path, text in outputs().items() if _differs(path, text)]
    if "--write" in sys.argv:
        for path, text in outputs().items():
            path.write_text(text)
        return 0
    for path in stale:
        print(f"{path}: not up to date; run: python scripts/error_texts.py --write")
    return 1 if stale else 0


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text() != text


if __name__ == "__main__":
    sys.exit(main())
