"""Print what an image contains as CycloneDX 1.6: packages of its Python and of its Debian or Ubuntu base.

Runs inside the image, read from standard input: `python - NAME VERSION < docker/sbom.py`. Standard library only.
"""

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

DPKG_STATUS = Path("/var/lib/dpkg/status")
OS_RELEASE = Path("/etc/os-release")
Component = dict[str, object]


def component(name: str, version: str, purl: str, licence: "str | None" = None) -> Component:
    """One library; the licence is what its package says."""
    found: Component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence:
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def licence_of(metadata: importlib.metadata.PackageMetadata) -> "str | None":
    """The licence's expression, else its classifiers, else the first line of its text."""
    prefix = "License :: OSI Approved :: "
    expression = list(metadata.get_all("License-Expression") or [])
    classified = [line[len(prefix) :] for line in metadata.get_all("Classifier") or [] if line.startswith(prefix)]
    text = [text.strip().splitlines()[0] for text in metadata.get_all("License") or [] if text.strip()]
    return " and ".join(expression or classified or text[:1]) or None


def python_packages() -> Iterator[Component]:
    """Every distribution that this Python can import, the first of each name."""
    seen: set[str] = set()
    for each in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"] or "").lower()
        if name and name not in seen:
            seen.add(name)
            purl = f"pkg:pypi/{quote(name)}@{quote(each.version)}"
            yield component(name, each.version, purl, licence_of(each.metadata))


def system_packages(status: str, distribution: str) -> Iterator[Component]:
    """The installed packages of dpkg's status file."""
    for paragraph in status.split("\n\n"):
        field = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", paragraph, re.M))
        if field.get("Status") == "install ok installed":
            name, version = field["Package"], field["Version"]
            purl = f"pkg:deb/{distribution}/{quote(name)}@{quote(version)}?arch={field['Architecture']}"
            yield component(name, version, purl)


def document(name: str, version: str, components: "list[Component]") -> "dict[str, object]":
    """The whole bill, in an order that doesn't change from run to run."""
    subject = {"type": "container", "bom-ref": "image", "name": name, "version": version}
    ordered = sorted(components, key=lambda each: str(each["purl"]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": ordered,
    }


def main() -> None:
    """Print the bill of this image."""
    components = list(python_packages())
    if DPKG_STATUS.exists():
        release = re.search(r"^ID=\"?([a-z]+)", OS_RELEASE.read_text(encoding="utf-8"), re.M)
        distribution = release[1] if release else "debian"
        components += system_packages(DPKG_STATUS.read_text(encoding="utf-8"), distribution)
    json.dump(document(sys.argv[1], sys.argv[2], components), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
