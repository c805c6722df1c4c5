"""`zerorun explain TEXT`: the entry of an error on the page Troubles."""

import posixpath
import re
import sys

from zerorun.command_line import Parser, exit_with
from zerorun.explain import explain

_NOT_FOUND = (
    "zerorun explain: no entry resembles this text; quote more of the error. If it is not "
    "zerorun's, the first Traceback of the rank that failed names the cause; "
    "`zerorun --log_dir DIR` keeps each rank's output"
)


def _plain(text: str) -> str:
    """Without Markdown: links are the paths of their pages, behind a label that says more."""

    def page(link: re.Match[str]) -> str:
        path = posixpath.normpath(f"docs/{link[2]}")
        return path if link[1] == link[2] else f"{link[1]} ({path})"

    return re.sub(r"\[([^]]*)\]\(([^)]*)\)", page, text.replace("**", ""))


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="zerorun explain", description="Says what causes an error, and what helps."
    )
    parser.add_argument("text", metavar="TEXT", nargs="+", help="The error, or a part of it")
    text = " ".join(parser.parse_args(arguments).text)
    entry = explain(text)
    if entry is None:
        print(_NOT_FOUND, file=sys.stderr)
        return 1
    print(f"{entry.heading}\n\n{_plain(entry.text)}\n\ndocs/troubles.md#{entry.anchor}")
    return 0


if __name__ == "__main__":
    exit_with(main)
