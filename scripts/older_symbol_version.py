#!/usr/bin/env python3
"""A copy of a shared library that asks for an older version of the symbols that have a newer one.

    python scripts/older_symbol_version.py LIBRARY COPY GLIBCXX_3.4.30 GLIBCXX_3.4.11

For libraries of Debian's that a wheel brings along; our own sources do it when they are compiled
(cmake/older_libstdcxx.h, which says why). The library must need the older version anyway. One that
does not need the newer is copied as it is. Needs pyelftools, which auditwheel brings.
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

_NEED = struct.Struct("<HHIII")  # Elf64_Verneed: version, count, file, aux, next
_AUX = struct.Struct("<IHHII")  # Elf64_Vernaux: hash, flags, index, name, next


def versions(data: bytes, begin: int, names: int) -> Iterator[tuple[int, str]]:
    """The place of each version that is needed, and its name."""
    more = True
    while more:
        _, count, _, first, following = _NEED.unpack_from(data, begin)
        at = begin + first
        for _ in range(count):
            *_, name, step = _AUX.unpack_from(data, at)
            start = names + name
            yield at, data[start : data.index(b"\0", start)].decode()
            at += step
        begin, more = begin + following, following != 0


def main() -> None:
    source, target, newer, older = sys.argv[1:]
    data = bytearray(Path(source).read_bytes())
    with open(source, "rb") as file:
        elf = ELFFile(file)
        section = elf.get_section_by_name(".gnu.version_r")
        names = elf.get_section(section["sh_link"])["sh_offset"]
        places = {name: at for at, name in versions(bytes(data), section["sh_offset"], names)}
    if newer in places:
        word, _, _, name, _ = _AUX.unpack_from(data, places[older])
        _, flags, index, _, step = _AUX.unpack_from(data, places[newer])
        _AUX.pack_into(data, places[newer], word, flags, index, name, step)
    Path(target).write_bytes(data)


if __name__ == "__main__":
    main()
