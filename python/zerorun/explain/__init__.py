"""Causes and remedies of errors (`zerorun explain TEXT`).

`entries.md` has an entry for each kind of error, and `messages.txt` every error text of the program
with the entry that it belongs to. `scripts/error_texts.py` collects the texts from the sources.
"""

import re
from difflib import SequenceMatcher
from importlib import resources
from typing import NamedTuple

__all__ = ["Entry", "explain"]

_FEWEST_WORDS, _FEWEST_OF_MESSAGE = 2, 3
_EMPTY = re.compile(r"[\[(]0[\])]")  # a shape or a size
_PYTHONS_OWN = "object has no attribute"  # in errors of all kinds
_ANY_ERROR = re.compile(r"\[zerorun[^\]]*\] error: ")  # of the launcher and the commands


class Entry(NamedTuple):
    """What the page Troubles says about a kind of error."""

    anchor: str
    heading: str
    text: str


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _entries() -> dict[str, Entry]:
    found = {}
    for part in re.split(r"^## ", _read("entries.md"), flags=re.MULTILINE)[1:]:
        head, _, text = part.partition("-->\n")
        heading, anchor = re.findall(r"\A(.*) \{ #(\S+) \}", head)[0]
        found[anchor] = Entry(anchor, heading, text.strip("\n"))
    return found


def _messages() -> list[tuple[str, str]]:
    """The anchor of each text, and the text."""
    lines = [line.split("\t", 1) for line in _read("messages.txt").splitlines()]
    return [(anchor, text) for anchor, text in lines]


def _examples() -> list[tuple[str, str]]:
    """What the entries themselves quote: the first line, and code of several words."""
    found = []
    for entry in _entries().values():
        quoted = [code for code in re.findall(r"`([^`]+)`", entry.text) if " " in code]
        found += [
            (entry.anchor, text) for text in (entry.heading, entry.text.splitlines()[0], *quoted)
        ]
    return found


def _words(text: str) -> list[str]:
    telling = _ANY_ERROR.sub(" ", text).replace(_PYTHONS_OWN, " ")
    return [word.lower() for word in re.findall(r"[A-Za-z_]{2,}", telling)]


def _resembles(shared: int, words: int, others: int) -> bool:
    """Whether half of both texts' words are shared, all of the asked text, or most of a message."""
    half = 4 * shared >= words + others and shared >= _FEWEST_WORDS
    return half or shared == words or shared >= max(_FEWEST_OF_MESSAGE, 0.8 * others)


def _nearest(text: str, known: list[tuple[str, str]]) -> str | None:
    """The anchor of the text with most words in common, in their order, relative to all words.

    None if none resembles the text."""
    words = _words(text)
    best, best_score = None, 0.0
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(words)
    is_of_nothing = _EMPTY.search(text) is not None
    for anchor, message in known:
        if not is_of_nothing and _EMPTY.search(message):
            continue
        others = _words(message)
        matcher.set_seq1(others)
        blocks = [block for block in matcher.get_matching_blocks() if block.size]
        shared = sum(block.size for block in blocks)
        score = shared / (len(others) + len(words)) if others else 0.0
        if _resembles(shared, len(words), len(others)) and score > best_score:
            best, best_score = anchor, score
    return best


def _has_all(text: str, parts: list[str]) -> bool:
    """Whether a text has all of these parts, in their order."""
    end = 0
    for part in parts:
        begin = text.find(part, end)
        if begin < 0:
            return False
        end = begin + len(part)
    return True


def _whole(text: str, known: list[tuple[str, str]]) -> str | None:
    """The anchor of the message with most words of its own that are all in the text, in order."""
    best, most = None, _FEWEST_OF_MESSAGE
    for anchor, message in known:
        parts = message.split("{}")
        words = len(_words(" ".join(parts)))
        if words > most and _has_all(text, parts):
            best, most = anchor, words
    return best


def _cut_off(text: str, known: list[tuple[str, str]]) -> str | None:
    """The anchor of the messages whose beginning is in the text, where its last sentences begin;
    None if they belong to several entries. A message within another's match does not count."""
    begins = {0, *(found.end() for found in re.finditer(r"[:\]] ", text))}
    # No message has as many characters.
    tails = [text[at:] for at in sorted(begins) if len(text) - at < 400]
    tails = [tail for tail in tails if len(_words(tail)) >= _FEWEST_WORDS]
    found: list[tuple[int, int, int, str]] = []  # begin, minus its words, end, anchor
    for anchor, message in known:
        head, *others = message.removeprefix("{}: ").split("{}")
        head = next((tail for tail in tails if head.startswith(tail)), head)
        words = len(_words(head))
        begin = text.rfind(head.rstrip(" :")) if words >= _FEWEST_WORDS else -1
        while begin >= 0 and begin not in begins:
            begin = text.rfind(head.rstrip(" :"), 0, begin)
        if begin < 0:
            continue
        end = begin + len(head)
        for part in others:
            at = text.find(part, end)
            if at < 0:
                break
            end = at + len(part)
            words += len(_words(part))
        found.append((begin, -words, end, anchor))
    best, until, anchors = (0, 0), 0, set[str]()
    for begin, words, end, anchor in sorted(found):
        if begin >= until:
            best, anchors = (begin, words), set()
        if (begin, words) == best:
            until = max(until, end)
            anchors.add(anchor)
    return anchors.pop() if len(anchors) == 1 else None


def explain(text: str) -> Entry | None:
    """The entry of an error, or of a part of one; None if it resembles none."""
    text, known = " ".join(text.split()), _messages()
    anchor = _whole(text, known) or _cut_off(text, known) or _nearest(text, _examples() + known)
    return _entries()[anchor] if anchor else None
