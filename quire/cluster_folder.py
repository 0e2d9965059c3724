"""The folder of a local cluster: who uses it, what it was made with, what runs in it now.

D/lock           held by whoever runs the cluster; its process id is inside
D/plan.json      what the cluster consists of, so that a restart finds the same ports
D/cluster.json   what runs now; there from "ready" until the stop
D/zookeeper/     the embedded ZooKeeper
D/bookie-1/ ...  configuration, log, journal and ledgers of each bookie
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from quire.processes import is_ours
from wire.errors import LedgerError

FOLDER_DEFAULT: Final = "quire-data"
_PLAN_FORMAT: Final = 1


class ClusterFolderError(LedgerError):
    """The folder cannot be used; the message says what was found there and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a cluster consists of. A bookie is its port for ever: ledgers know it by that."""

    zookeeper: str  # host:port, perhaps with a path behind
    is_embedded: bool
    bookie_ports: tuple[int, ...]

    @property
    def uri(self) -> str:
        servers, slash, path = self.zookeeper.partition("/")
        return f"zk://{servers}/{path}" if slash else f"zk://{servers}/ledgers"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBookie:
    id: str
    pid: int
    dir: str
    http: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """What `quire up` says when it is ready."""

    uri: str
    zookeeper: str
    bookies: tuple[RunningBookie, ...]
    console: str | None = None

    def to_json(self) -> str:
        return json.dumps(
            {
                "metadataServiceUri": self.uri,
                "zookeeper": self.zookeeper,
                "bookies": [asdict(bookie) for bookie in self.bookies],
                "console": self.console,
            }
        )


class ClusterFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path / "lock"
        self._plan_path = path / "plan.json"
        self._record_path = path / "cluster.json"

    # ------------------------------------------------------------------ who uses it

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder and keep everybody else out of it during the block."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ClusterFolderError(
                f"{self.path} cannot be used: {error.strerror}; name another folder with --dir"
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ClusterFolderError(
                    f"{self.path} is in use by the cluster of process {self.owner()}: stop it with "
                    f"`quire down --dir {self.path}`, or name another folder with --dir"
                ) from None
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
            yield
        finally:
            os.close(lock)

    def owner(self) -> int | None:
        """The process that runs the cluster; None if none does, whatever an old file says."""
        try:
            lock = os.open(self._lock_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(lock, 32).strip()
            return int(text) if text.isdigit() else None
        finally:
            os.close(lock)
        return None

    def require_owner(self) -> int:
        owner = self.owner()
        if owner is not None:
            return owner
        if not self.path.exists():
            raise ClusterFolderError(
                f"there is no {self.path}: name the cluster's folder with --dir"
            )
        stale = " (its cluster.json is stale: whoever ran it was killed)"
        raise ClusterFolderError(
            f"no cluster runs in {self.path}{stale if self._record_path.exists() else ''}: "
            f"start it with `quire up --dir {self.path}`"
        )

    # ------------------------------------------------------------------ what it consists of

    def read_plan(self) -> Plan | None:
        text = self._text(self._plan_path)
        if text is None:
            return None
        try:
            found = json.loads(text)
            if found["format"] != _PLAN_FORMAT:
                raise ClusterFolderError(
                    f"{self._plan_path} has format {found['format']}, made by another version of "
                    "Quire: use that one, or another folder"
                )
            return Plan(
                zookeeper=str(found["zookeeper"]),
                is_embedded=bool(found["embedded"]),
                bookie_ports=tuple(map(int, found["bookie_ports"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterFolderError(
                f"{self._plan_path} cannot be understood ({error!r}): this is no folder of a "
                "cluster, or it is damaged; name another folder with --dir"
            ) from None

    def write_plan(self, plan: Plan) -> None:
        content = {
            "format": _PLAN_FORMAT,
            "zookeeper": plan.zookeeper,
            "embedded": plan.is_embedded,
            "bookie_ports": list(plan.bookie_ports),
        }
        self._replace(self._plan_path, json.dumps(content, indent=2))

    # ------------------------------------------------------------------ what runs now

    def read_record(self) -> ClusterRecord:
        """What runs, or why that cannot be said."""
        self.require_owner()
        text = self._text(self._record_path)
        if text is None:
            raise ClusterFolderError(f"the cluster in {self.path} is not ready yet: wait for it")
        try:
            found: dict[str, Any] = json.loads(text)
            return ClusterRecord(
                uri=found["metadataServiceUri"],
                zookeeper=found["zookeeper"],
                bookies=tuple(RunningBookie(**bookie) for bookie in found["bookies"]),
                console=found["console"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterFolderError(
                f"{self._record_path} cannot be understood ({error!r}): restart the cluster"
            ) from None

    def write_record(self, record: ClusterRecord) -> None:
        self._replace(self._record_path, record.to_json())

    def remove_record(self) -> None:
        self._record_path.unlink(missing_ok=True)

    def leftover_pids(self) -> list[int]:
        """Processes named in a record of a run that was killed, as far as they still live."""
        text = self._text(self._record_path)
        if text is None:
            return []
        try:
            found = [(int(row["pid"]), str(row["dir"])) for row in json.loads(text)["bookies"]]
        except (ValueError, KeyError, TypeError):
            return []
        return [pid for pid, folder in found if is_ours(pid, folder)]

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ClusterFolderError(f"{path} cannot be read: {error}") from None

    def _replace(self, path: Path, text: str) -> None:
        """Whoever reads it sees the old text or the new one."""
        new = path.with_suffix(".new")
        new.write_text(text + "\n")
        new.replace(path)
