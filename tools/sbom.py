"""`python -m tools.sbom FILE`: the packages of this environment as a bill of materials (CycloneDX 1.6, JSON)."""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from regard.files import write_text


def component(package: Distribution) -> dict[str, Any]:
    """One package: its name, version, license and package URL."""
    about = package.metadata
    name, version = str(about["Name"]), package.version
    license = about.get("License-Expression") or about.get("License") or ""
    entry: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{quote(name.lower().replace('_', '-'))}@{quote(version)}",
    }
    if license and "\n" not in license:
        entry["licenses"] = [{"license": {"name": license[:100]}}]
    return entry


def bill() -> dict[str, Any]:
    packages = {(str(x.metadata["Name"]).lower(), x.version): x for x in distributions() if x.metadata["Name"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "regard"}},
        "components": [component(packages[key]) for key in sorted(packages)],
    }


if __name__ == "__main__":
    place, content = Path(sys.argv[1]), bill()
    write_text(place, json.dumps(content, indent=1) + "\n")
    print(f"wrote {len(content['components'])} packages to {place}")
