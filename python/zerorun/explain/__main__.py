"""`zerorun explain TEXT`: the entry of an error on the page Troubles."""

from __future__ import annotations

import sys

from zerorun.command_line import Parser
from zerorun.explain import explain


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="zerorun explain", description="Says what causes an error, and what helps."
    )
    parser.add_argument("text", metavar="TEXT", nargs="+", help="The error, or a part of it")
    text = " ".join(parser.parse_args(arguments).text)
    entry = explain(text)
    if entry is None:
        print(
            "zerorun explain: no entry resembles this text; quote more of the error",
            file=sys.stderr,
        )
        return 1
    print(f"{entry.heading}\n\n{entry.text.replace('**', '')}\n\ndocs/troubles.md#{entry.anchor}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
