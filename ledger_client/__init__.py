"""The ledger client: create, append, read, tail and recover ledgers.

Its siblings `wire`, `runtime` and `metadata` have short names that another program may use for
modules of its own. A mixture would fail far from its cause, so it is refused here.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def _refuse_strangers() -> None:
    home = Path(__file__).resolve().parent.parent
    for name in ("wire", "runtime", "metadata"):
        module = import_module(name)
        file = module.__file__
        found = Path(file).resolve() if file else None
        if found is None or found.parent.parent != home:
            where = found or f"{list(module.__path__)} (a folder without __init__.py)"
            raise ImportError(
                f"ledger_client needs its own package `{name}` beside it in {home}, but Python "
                f"found {where}: rename that module, or put it behind this one on sys.path"
            )


_refuse_strangers()
