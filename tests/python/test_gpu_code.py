"""The machine code in the CUDA backend: the drivers that load it, and what its kernels take of a
multiprocessor. No GPU is needed to read that.

Its sources are also compiled with other versions of CUDA than this build's, for every GPU that is
supported. That takes long and needs packages of PyPI, so it is done on request:
ZERORUN_CUDA_VERSIONS="12.8 12.9 13.0".
"""

import ctypes
import struct
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from prelude import *

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


def unpacked(data: bytes, nbytes: int) -> bytes:
    """A block of LZ4, by the library that Debian's own package manager has."""
    out = ctypes.create_string_buffer(nbytes)
    decompress = ctypes.CDLL("liblz4.so.1").LZ4_decompress_safe_partial
    assert decompress(data, out, len(data), nbytes, nbytes) == nbytes
    return out.raw


@cache
def images_of(library: Path) -> list[Image]:
    if not library.exists():
        pytest.skip("this build has no CUDA backend")
    found = []
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
            found.append(Image(kind, capability, flags, code))
            at += length + packed
        begin = data.find(CONTAINER, end)
    return found


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


LIBRARIES = ("libzerorun_cuda.so", "libzerorun_train_cuda.so")
# e_ident[EI_OSABI] and e_ident[EI_ABIVERSION] of code for GPUs before 10.0; CUDA 13's own has 0x41
# and 8.
CUDA_12 = (0x33, 7)


@each("name", *LIBRARIES)
def test_drivers_of_cuda_12_load_all_code(name: str) -> None:
    found = images_of(BUILD / "lib" / name)
    if "for drivers of CUDA 12" not in passed(ran([ZERORUN, "env"])).stdout:
        pytest.skip("this build is for drivers of CUDA 13")
    assert {image.kind for image in found} == {PTX, ELF}
    for image in found:
        assert image.flags & ZSTD == 0  # which only later drivers unpack
        old = image.capability < 100
        if image.kind == PTX:
            assert image.ptx_version <= ((8, 0) if old else (8, 8))
        elif old:
            assert tuple(image.code[7:9]) == CUDA_12


@each("name", *LIBRARIES)
def test_kernels_keep_what_they_work_on_in_registers(name: str) -> None:
    assert len(checked_kernels(images_of(BUILD / "lib" / name))) >= 6


def test_the_runtime_that_the_build_found_is_named_with_its_version() -> None:
    """As the other version's is beside it (device/cuda/libraries/library_files.h)."""
    library = BUILD / "lib" / "libzerorun_train_cuda.so"
    text = library.read_bytes() if library.exists() else b""
    if b"CUDNN_FRONTEND_CUDART_LIB_NAME" not in text:
        pytest.skip("this build has no CUDA backend, or no cuDNN")
    assert re.search(rb"\0/[^\0]*/libcudart\.so\.\d+\0", text)


def ptx_of_the_device() -> Iterator[tuple[str, str, str]]:
    for image in images_of(BUILD / "lib" / "libzerorun_cuda.so"):
        if image.kind == PTX:
            for mangled, text in texts(image.code).items():
                yield kernel_name(mangled), mangled, text


def test_updates_move_vectors_of_every_dtype() -> None:
    found = [row for row in ptx_of_the_device() if row[0].startswith("update_")]
    assert len(found) == 2 * 8  # for each rule, and SGD with and without momentum
    for kernel, mangled, text in found:
        expected = {"ld.global.v4.f32", "st.global.v4.f32", "st.global.v4.u16"}
        if kernel == "update_blocks":
            expected.add("ld.global.v4.u16")
        assert {move for move in expected if move not in text} == set(), mangled
        for move in ("ld.global", "st.global"):
            # Not every rule has states, or writes them. Four bytes may travel as a word.
            vectors = text.count(f"{move}.v4.u8") + text.count(f"{move}.u32")
            assert 4 * vectors >= text.count(f"{move}.u8"), (mangled, move)


def test_what_has_the_cpus_bits_is_not_fused() -> None:
    """A fused multiply-add rounds once where the CPU rounds twice. (Those of update_blocks add
    multiples of 2^-13, in round_to_fp16, which are exact.)"""
    moves = {"quantize_blocks": "ld.global.v4", "dequantize_blocks": "st.global.v4"}
    found = []
    for kernel, mangled, text in ptx_of_the_device():
        if kernel in ("decide_alone", "ratio_each", "update_vectors", *moves):
            found.append(kernel)
            assert "fma." not in text, mangled
            if "ELb1E" in mangled:  # aligned
                assert moves[kernel] in text, mangled
    assert len(found) == 2 + 8 + 2 * 2 * 2 * 3  # rules; bits, alignments, dtypes


GPUS = (80, 90, 100, 120)
# For GPUs from 10.0 on, nvcc 13 uses vectors of 256 bits, which 12.8's assembler does not know: it
# makes their code from the PTX of 9.0.
LAST_PTX = {"12.8": 90}
PACKAGES = ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12")  # assembler; headers and runtime


def options_for(version: str, folder: Path) -> list[str]:
    """What makes cmake compile for CUDA `version`, whose packages go to `folder`."""
    if version.startswith("13."):
        return ["-DZERORUN_CUDA_DRIVERS=13"]
    if not folder.exists():
        wanted = [f"{package}=={version}.*" for package in PACKAGES]
        output_of(
            sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *wanted
        )
    nvidia = folder / "nvidia"
    # cmake links a program to look at the compiler, and 12.8's package has no static runtime.
    # Kernels are compiled only, so this build's runtime, of 12.9, serves.
    own = Path(sysconfig.get_path("purelib")) / "nvidia" / "cuda_runtime" / "lib"
    for library in own.glob("*.a"):
        place = nvidia / "cuda_runtime" / "lib" / library.name
        if not place.exists():
            place.symlink_to(library)
    return [
        "-DZERORUN_CUDA_DRIVERS=12",
        f"-DZERORUN_CUDA12_RUNTIME={nvidia / 'cuda_runtime' / 'lib' / 'libcudart_static.a'}",
        f"-DZERORUN_CUDA12_PTXAS={nvidia / 'cuda_nvcc' / 'bin' / 'ptxas'}",
    ]


@each("version", *os.environ.get("ZERORUN_CUDA_VERSIONS", "").split() or [""])
def test_kernels_compile_for_every_gpu(version: str) -> None:
    if not version:
        pytest.skip('on request: ZERORUN_CUDA_VERSIONS="12.8 12.9 13.0"')
    folder = BUILD.parent / f"cuda-{version}"
    options = options_for(version, folder.with_name(f"cuda-{version}-packages"))
    if not (folder / "build.ninja").exists():
        architectures = ";".join(map(str, GPUS))
        options += ["-DZERORUN_CUDA=ON", f"-DZERORUN_CUDA_ARCHITECTURES={architectures}"]
        options += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_FLAGS=--compress-mode=none"]
        print(output_of("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options))
    targets = output_of("ninja", "-C", folder, "-t", "targets", "all").splitlines()
    # Not those of the fake, for which the CPU's compiler takes kernels as C++.
    objects = [line.partition(": ")[0] for line in targets if ".cu.o: CUDA_COMPILER" in line]
    assert len(objects) >= 10
    output_of("ninja", "-C", folder, *objects)
    seen = set()
    for name in objects:
        found = images_of(folder / name)
        assert {image.capability for image in found if image.kind == ELF} == set(GPUS), name
        ptx = [image.capability for image in found if image.kind == PTX]
        assert ptx == [LAST_PTX.get(version, GPUS[-1])], name
        seen |= checked_kernels(found)
    assert len(seen) >= 20
