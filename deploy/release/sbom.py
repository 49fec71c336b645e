"""Prints a CycloneDX SBOM of what requirements.lock installs: `python deploy/release/sbom.py LOCK PYTHON`.

PYTHON is an interpreter into whose environment the lock was installed: licences and dependencies are read there.
`SOURCE_DATE_EPOCH` is the time that the document has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).parents[2]
NAME = "spark-gateway"
# Run by PYTHON: each installed distribution with its version, licence and requirements.
LOOK = """
import json
from importlib.metadata import distributions
print(json.dumps({d.metadata["Name"]: [d.version, d.metadata.get("License-Expression") or "",
                                       d.metadata.get_all("Requires-Dist") or []] for d in distributions()}))
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> dict[str, str]:
    """Name → version of each package of a lock."""
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.M)
    return {normal(name): version for name, version in found}


def reference(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def sbom(version: str, lock: dict[str, str], installed: dict[str, Any], at: int) -> dict[str, Any]:
    """The document. A package of the lock that is for other machines only is in it without licence and dependencies."""
    components, dependencies = [], []
    for name, package in sorted(lock.items()):
        component: dict[str, Any] = {"type": "library", "name": name, "version": package, "scope": "required"}
        component |= {"bom-ref": reference(name, package), "purl": reference(name, package)}
        _, licence, requires = installed.get(name, (package, "", []))
        if licence:
            component["licenses"] = [{"expression": licence}]
        components.append(component)
        needed = {normal(re.split(r"[\s\[<>=!~;(]", one)[0]) for one in requires if "extra ==" not in one}
        known = sorted(reference(one, lock[one]) for one in needed & set(lock))
        dependencies.append({"ref": reference(name, package), "dependsOn": known})
    itself = reference(NAME, version)
    dependencies.append({"ref": itself, "dependsOn": [component["bom-ref"] for component in components]})
    program = {"type": "application", "name": NAME, "version": version, "bom-ref": itself, "purl": itself}
    content = json.dumps([components, dependencies, version])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid5(NAMESPACE_URL, content).urn,
        "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), "component": program},
        "components": components,
        "dependencies": dependencies,
    }


def main(lock: str, python: str) -> None:
    told = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, check=True).stdout
    installed = {normal(name): row for name, row in json.loads(told).items()}
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    at = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    print(json.dumps(sbom(version, locked(Path(lock).read_text()), installed, at), indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
