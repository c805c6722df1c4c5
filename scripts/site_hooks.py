"""What mkdocs.yml adds to docs/: the pages of the root folder, and the files that pages link to."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# Pages to begin with are found first, and those about the inside last.
BOOST = {"Start": 4, "How to": 4, "Coming from": 4, "Troubles": 2, "Understand": 0.25}
WORKER = "site_worker.js"  # the search needs it where a page is opened from a disk
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, page, content=_LINK.sub(_of_root, text)))
    pages = [(page, page.src_uri in PAGES.values()) for page in files.documentation_pages()]
    texts = [
        page.content_string if own else _LINK.sub(_of_docs, page.content_string)
        for page, own in pages
    ]
    linked = {link for text in texts for link in _LINK.findall(text) if link.startswith("files/")}
    for link in sorted(linked):
        source = str(ROOT / link.removeprefix("files/"))
        files.append(File.generated(config, link, abs_src_path=source))
    files.append(
        File.generated(config, f"files/{WORKER}", abs_src_path=str(ROOT / "scripts" / WORKER))
    )
    return files


def on_post_page(output: str, **_: Any) -> str:
    return output.replace("https://unpkg.com/iframe-worker/shim", f"files/{WORKER}")


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings name functions by roles (:func:), which only Sphinx replaces."""
    return re.sub(r":(?:attr|class|func|meth|mod):(?=<code)", "", html)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    section = page.parent.title if page.parent else page.title
    boost = 0.25 if page.title == "Python API" else BOOST.get(section, 1)
    page.meta["search"] = {"boost": boost}
    return markdown if page.file.src_uri in PAGES.values() else _LINK.sub(_of_docs, markdown)


def _of_root(link: re.Match[str]) -> str:
    """A link of a page in the root folder."""
    target = link[1]
    if target in PAGES:
        return PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"files/{target}"


def _of_docs(link: re.Match[str]) -> str:
    """A link of a page in docs/."""
    outside = link[1].removeprefix("../")
    if outside == link[1]:
        return link[1]
    return PAGES.get(outside, f"files/{outside}")
