"""Writes docs/command_line.md: the help of every command.

python scripts/command_page.py build/release/bin/zerorun > docs/command_line.md
"""

import re
import subprocess
import sys
from pathlib import Path

HEAD = Path(__file__).with_name("command_page.md")


def told(zerorun: str, *words: str) -> str:
    """What it prints, without the values of variables that are set here."""
    result = subprocess.run(
        [zerorun, *words], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    return re.sub(r"^ +=.*\n", "", result.stdout.rstrip() + "\n", flags=re.MULTILINE).rstrip()


def page(zerorun: str) -> str:
    topics = re.findall(r"^ {4}zerorun ([a-z ]+?)  ", told(zerorun, "help"), re.MULTILINE)
    parts = [HEAD.read_text().rstrip()]
    for topic in ["launcher", "train", "environment", *topics]:
        parts.append(f"## {topic}\n\n```text\n{told(zerorun, 'help', *topic.split())}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1]))
