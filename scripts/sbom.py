#!/usr/bin/env python3
"""The software bill of materials of a wheel (CycloneDX 1.6), from what THIRD_PARTY.md lists.

python scripts/sbom.py VERSION COMMIT > zerorun.cdx.json

The same input gives the same bytes: there is no time and no random number in it. Versions are those
of the packages that are installed here.
"""

import importlib.metadata
import json
import subprocess
import sys
import uuid

DEBIAN = {
    "libcli11-dev": "BSD-3-Clause",
    "libdnnl-dev": "Apache-2.0",
    "libfmt-dev": "MIT",
    "libgloo-dev": "BSD-3-Clause",
    "libgomp1": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libhiredis-dev": "BSD-3-Clause",
    "libhwy-dev": "Apache-2.0",
    "libibverbs-dev": "BSD-2-Clause OR GPL-2.0-only",
    "libnl-3-dev": "LGPL-2.1-only",
    "liburing-dev": "MIT OR LGPL-2.1-or-later",
    "libxxhash-dev": "BSD-2-Clause",
    "nlohmann-json3-dev": "MIT",
    "ocl-icd-libopencl1": "BSD-2-Clause",
}
PYPI = {"pybind11": "BSD-3-Clause", "nvidia-cudnn-frontend": "MIT"}
SHIPPED = [("uPlot", "1.6.31", "MIT", "pkg:npm/uplot@1.6.31")]


def versions_of_debian() -> dict[str, str]:
    query = ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${db:Status-Status}\n", *DEBIAN]
    told = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    rows = [line.split("\t") for line in told.splitlines()]
    return {name: version for name, version, status in rows if status == "installed"}


def version_of_pypi(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def components() -> list[tuple[str, str, str, str]]:
    """Name, version, licence and package URL of each."""
    found = list(SHIPPED)
    for name, version in versions_of_debian().items():
        found.append((name, version, DEBIAN[name], f"pkg:deb/debian/{name}@{version}"))
    for name, licence in PYPI.items():
        version = version_of_pypi(name)
        if version:
            found.append((name, version, licence, f"pkg:pypi/{name}@{version}"))
    return sorted(found)


def sbom(version: str, commit: str) -> dict[str, object]:
    own = f"pkg:pypi/zerorun@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + '#' + commit)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "zerorun",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
                "purl": own,
                "properties": [{"name": "commit", "value": commit}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "licenses": [{"expression": licence}],
                "purl": purl,
            }
            for name, version, licence, purl in components()
        ],
        "dependencies": [{"ref": own, "dependsOn": [purl for *_, purl in components()]}],
    }


if __name__ == "__main__":
    json.dump(sbom(sys.argv[1], sys.argv[2]), sys.stdout, indent=1)
    sys.stdout.write("\n")
