"""The site that `./dev docs` has made, from a disk, in a headless browser."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import BROWSER, browse

SITE = Path(__file__).resolve().parents[2] / "site"
PAGES = sorted(path.name for path in SITE.glob("*.html") if path.name != "404.html")
MANY = 50


def test_pages_need_no_network() -> None:
    assert len(PAGES) > MANY
    for name in PAGES:
        text = (SITE / name).read_text()
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?(\S+)", text)
        assert [address for address in loaded if address.startswith(("http", "//"))] == [], name


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("search/search_index.js", ["ranks diverged", "overlap_param_gather", "node_rank"]),
        ("api.html", ['id="zerorun.shard"', 'id="zerorun.zero.GatheredParameters"']),
    ],
)
def test_errors_and_the_python_interface_are_there(file: str, words: list[str]) -> None:
    text = (SITE / file).read_text()
    assert all(word in text for word in words)


@pytest.mark.skipif(BROWSER is None, reason="no chromium")
@pytest.mark.parametrize("width", [390, 1440])
def test_pages_open_without_errors(tmp_path: Path, width: int) -> None:
    """In one start of the browser, each in a frame of this width, which tells when it is loaded."""
    frames = "".join(
        f'<iframe width="{width}" height="2000" src="{(SITE / name).as_uri()}"'
        ' onload="++document.body.dataset.loaded"></iframe>'
        for name in PAGES
    )
    page = tmp_path / "all.html"
    page.write_text(f'<body data-loaded="0">{frames}</body>')
    told = browse(tmp_path, page.as_uri(), 1600)
    assert f'data-loaded="{len(PAGES)}"' in told


@pytest.mark.skipif(BROWSER is None, reason="no chromium")
@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("diverged", "troubles.html"),
        ("two hosts do not find each other", "start_hosts.html"),
        ("which keys does zerorun ignore", "deepspeed.html"),
        ("offload to disk", "fit.html"),
        ("RL weights", "rl.html"),
    ],
)
def test_the_search_finds_from_a_disk(tmp_path: Path, question: str, page: str) -> None:
    address = f"{(SITE / 'index.html').as_uri()}?q={quote(question)}"
    found = browse(tmp_path, address, 1440)
    links = re.findall(r'<a href="([^"]*)" class="md-search-result__link', found)
    assert page in links[0], links
