"""The machine code in a library: its fat binaries of CUDA, and what they say of kernels."""

import ctypes
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CONTAINER = struct.pack("<I", 0xBA55ED50)
PTX, ELF = 1, 2
LZ4, ZSTD = 0x2000, 0x8000
# Registers of a thread, at most. 256 threads of up to 64 registers fill half of a multiprocessor's
# threads, which is enough for what waits for memory; kernels with more have arithmetic to do.
REGISTERS = {
    "map_elements": 48,
    "update_vectors": 48,
    "squares": 96,
    "norm_backward": 80,  # 24 warps of a multiprocessor, with a row's 16 bytes each of x and dy
    "quantize_blocks": 48,
    "dequantize_blocks": 48,
    "attend": 128,
    "query_gradients": 128,
    "key_value_gradients": 160,
    "token_gradients": 96,  # 82 from 10.0 on
}
OTHERS = 64

_INFO = {0x2F: "registers", 0x11: "frame"}  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE


@dataclass
class Image:
    kind: int
    capability: int
    flags: int
    code: bytes

    @property
    def ptx_version(self) -> tuple[int, int]:
        found = re.search(rb"^\.version (\d+)\.(\d+)", self.code, re.MULTILINE)
        assert found is not None
        return int(found[1]), int(found[2])

    @property
    def abi(self) -> tuple[int, int]:
        """e_ident[EI_OSABI] and e_ident[EI_ABIVERSION]."""
        return self.code[7], self.code[8]


def unpacked(data: bytes, nbytes: int) -> bytes:
    """A block of LZ4, by the library that Debian's own package manager has."""
    out = ctypes.create_string_buffer(nbytes)
    decompress = ctypes.CDLL("liblz4.so.1").LZ4_decompress_safe_partial
    assert decompress(data, out, len(data), nbytes, nbytes) == nbytes
    return out.raw


def images(library: Path) -> Iterator[Image]:
    data = library.read_bytes()
    begin = data.find(CONTAINER)
    while begin >= 0:
        header, size = struct.unpack_from("<6xHQ", data, begin)
        at, end = begin + header, begin + header + size
        while at < end:
            kind, length, packed, used, capability, flags, whole = struct.unpack_from(
                "<H2xIQI8xI8xQ8xQ", data, at
            )
            code = data[at + length : at + length + (used if flags & LZ4 else packed)]
            if flags & LZ4:
                code = unpacked(code, whole)
            yield Image(kind, capability, flags, code)
            at += length + packed
        begin = data.find(CONTAINER, end)


def _sections(elf: bytes) -> dict[str, bytes]:
    table, entry, count, names = struct.unpack_from("<Q10x3H", elf, 0x28)
    rows = [struct.unpack_from("<II8x8xQQ", elf, table + i * entry) for i in range(count)]
    text = elf[rows[names][2] :]
    return {
        text[name : text.index(b"\0", name)].decode(): elf[offset : offset + size]
        for name, _, offset, size in rows
    }


def kernels(cubin: bytes) -> dict[str, dict[str, int]]:
    """By mangled name: registers of a thread, and bytes of its frame in local memory, which holds
    what the registers do not."""
    sections = _sections(cubin)
    symbols, strings, info = sections[".symtab"], sections[".strtab"], sections[".nv.info"]
    found: dict[str, dict[str, int]] = {}
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == 4 and attribute in _INFO:  # a value of its own
            symbol, value = struct.unpack_from("<II", info, at + 4)
            (name,) = struct.unpack_from("<I", symbols, symbol * 24)
            text = strings[name : strings.index(b"\0", name)].decode()
            found.setdefault(text, {})[_INFO[attribute]] = value
        at += 4 + (size if form == 4 else 0)
    return found


def texts(ptx: bytes) -> dict[str, str]:
    """The kernels in PTX, by mangled name."""
    found = re.finditer(r"\.entry (\w+)\((.*?)^\}", ptx.decode(), re.MULTILINE | re.DOTALL)
    return {kernel[1]: kernel[2] for kernel in found}


def kernel_name(mangled: str) -> str:
    """The part of a mangled name before its template arguments or parameters: the last word that
    is no namespace."""
    words = re.findall(r"(?<=\d)([a-z]+(?:_[a-z]+)*)(?=I|E|P|v)", mangled)
    return next(word for word in words if word not in ("zerorun", "cuda", "train"))


def checked_kernels(found: Iterable[Image]) -> set[str]:
    """The names of the kernels in machine code; fails for one that keeps what it works on in local
    memory, or takes more registers than its limit."""
    seen = set()
    for image in found:
        if image.kind != ELF:
            continue
        for mangled, takes in kernels(image.code).items():
            where = f"{mangled} on {image.capability}"
            assert takes["frame"] == 0, where
            if "registers" not in takes:  # a function that kernels call
                continue
            kernel = kernel_name(mangled)
            seen.add(kernel)
            assert takes["registers"] <= REGISTERS.get(kernel, OTHERS), where
    return seen
