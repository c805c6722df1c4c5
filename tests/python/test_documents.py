"""What all pages have in common: their length, their links, and their place on the site."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import command_page  # noqa: E402

NAMES = ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
PAGES = [*(ROOT / f"{name}.md" for name in NAMES), *sorted((ROOT / "docs").glob("*.md"))]
# Pages in which one looks something up.
REFERENCES = {"command_line", "config", "decisions", "deepspeed_names", "troubles", "CONTRIBUTING"}
README_LINES, PAGE_LINES, EXAMPLE_LINES = 120, 250, 60


def without_code(path: Path) -> str:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def anchors_of(path: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    found: set[str] = set(re.findall(r'<a id="([^"]+)">', path.read_text()))
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = next(n for n in range(99) if (f"{slug}-{n}" if n else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        file, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            broken.append(target)
    assert broken == []


def test_pages_are_short() -> None:
    lengths = {page.stem: len(page.read_text().splitlines()) for page in PAGES}
    assert lengths.pop("README") <= README_LINES
    long = {name for name, lines in lengths.items() if lines > PAGE_LINES}
    assert long <= REFERENCES


def test_examples_are_short() -> None:
    files = [*ROOT.glob("examples/[ps]*/*.py"), *ROOT.glob("examples/recipes/*")]
    assert len(files) > 15
    too_long = {f.name for f in files if len(f.read_text().splitlines()) > EXAMPLE_LINES}
    # The model, which no step changes; and what accelerate and peft ask of a program, in one.
    assert too_long <= {"gpt.py", "accelerate_lora.py"}


def test_every_page_is_on_the_site_once() -> None:
    shown = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    hooks = (ROOT / "scripts" / "site_hooks.py").read_text()
    of_root = re.findall(r'^ {4}"\w+\.md": "(\w+\.md)"', hooks, re.MULTILINE)
    own = [page.name for page in PAGES if page.parent == ROOT / "docs"]
    assert sorted(shown) == sorted([*own, *of_root])


def test_readme_leads_to_every_page_within_two_clicks() -> None:
    def linked(path: Path) -> set[Path]:
        links = re.findall(r"\]\(([^)\s#]+\.md)", path.read_text())
        return {(path.parent / link).resolve() for link in links}

    first = linked(ROOT / "README.md")
    assert set(PAGES[1:]) <= first.union(*map(linked, first))


def test_the_page_of_commands_is_what_the_commands_say(build: Path) -> None:
    page = command_page.page(str(build / "bin" / "zerorun"))
    assert page == (ROOT / "docs" / "command_line.md").read_text(), (
        "python scripts/command_page.py build/release/bin/zerorun > docs/command_line.md"
    )
