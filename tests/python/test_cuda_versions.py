"""The sources of the CUDA backend with other versions of CUDA than this build's, for every GPU that
is supported: they compile, and kernels keep what they work on in registers.

Compiling takes long and needs packages of PyPI, so it is done on request:
ZERORUN_CUDA_VERSIONS="12.8 12.9 13.0". No GPU is needed.
"""

import os
import sys
import sysconfig
from pathlib import Path

import gpu_code
import pytest
from ranks import output_of

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


@pytest.mark.parametrize("version", os.environ.get("ZERORUN_CUDA_VERSIONS", "").split() or [""])
def test_kernels_compile_for_every_gpu(build: Path, root: Path, version: str) -> None:
    if not version:
        pytest.skip('on request: ZERORUN_CUDA_VERSIONS="12.8 12.9 13.0"')
    folder = build.parent / f"cuda-{version}"
    options = options_for(version, folder.with_name(f"cuda-{version}-packages"))
    if not (folder / "build.ninja").exists():
        architectures = ";".join(map(str, GPUS))
        options += ["-DZERORUN_CUDA=ON", f"-DZERORUN_CUDA_ARCHITECTURES={architectures}"]
        options += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CUDA_FLAGS=--compress-mode=none"]
        print(output_of("cmake", "-S", root, "-B", folder, "-G", "Ninja", *options))
    targets = output_of("ninja", "-C", folder, "-t", "targets", "all").splitlines()
    # Not those of the fake, for which the CPU's compiler takes kernels as C++.
    objects = [line.partition(": ")[0] for line in targets if ".cu.o: CUDA_COMPILER" in line]
    assert len(objects) >= 10
    output_of("ninja", "-C", folder, *objects)
    seen = set()
    for name in objects:
        images = list(gpu_code.images(folder / name))
        machine = {image.capability for image in images if image.kind == gpu_code.ELF}
        assert machine == set(GPUS), name
        ptx = [image.capability for image in images if image.kind == gpu_code.PTX]
        assert ptx == [LAST_PTX.get(version, GPUS[-1])], name
        seen |= gpu_code.checked_kernels(images)
    assert len(seen) >= 20
