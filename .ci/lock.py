"""Write what is installed as constraints.txt, and the same with hashes as requirements.lock.

    make lock

The hashes are the index's own, of every file that a release has for the systems and versions of
Python that we run on: an archive that was exchanged later is refused by pip.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from pip._internal.models.index import PyPI

ROOT = Path(__file__).parent.parent
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
HEAD = """\
# What `make` and CI install, and nothing else: pip checks every archive against these hashes.
# Made by `make lock`, like constraints.txt, which has the same versions for everybody else.
"""
_ELSEWHERE = re.compile(r"-(pp\d+|cp2\d|cp3(\d|10))-(?!abi3).*\.whl$|-win[^/]*\.whl$|\.exe$|\.egg$")


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def hashes(index: str, name: str, version: str) -> list[str]:
    project = re.sub(r"[-_.]+", "-", name).lower()
    with urllib.request.urlopen(f"{index.rstrip('/')}/{project}/", timeout=60) as answer:
        page = answer.read().decode()
    found = []
    for file, digest in re.findall(r'href="[^"]*/([^/"#]+)#sha256=([0-9a-f]{64})', page):
        stem = re.sub(r"\.(tar\.gz|zip)$", "", file)
        of = file.split("-")[1] if file.endswith(".whl") else stem.rpartition("-")[2]
        if of == version and not _ELSEWHERE.search(file):
            found.append(digest)
    if not found:
        raise SystemExit(f"the index has no hash for {name} {version}")
    return sorted(found)


def main() -> None:
    index = pip("config", "get", "global.index-url") or PyPI.simple_url
    frozen = pip("freeze", "--all", "--exclude", "pip", "--exclude-editable").splitlines()
    comments = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("#")]
    CONSTRAINTS.write_text("\n".join([*comments, *frozen]) + "\n")
    blocks = []
    for line in frozen:
        name, _, version = line.partition("==")
        lines = [line, *(f"    --hash=sha256:{digest}" for digest in hashes(index, name, version))]
        blocks.append(" \\\n".join(lines))
    LOCK.write_text(HEAD + "\n".join(blocks) + "\n")


if __name__ == "__main__":
    main()
