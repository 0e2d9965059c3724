"""What `quire doctor` looks at on a machine: the runtime, limits, disks, configurations."""

from __future__ import annotations

import importlib.util
import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from bookie.identity import Resolver
from bookie.lifetimes import BookieSettings
from bookie.settings import bookie_settings, check_settings, finish
from bookie.storage.store_files import CURRENT, LOCK_NAME
from quire.output import byte_count
from runtime.config import Settings
from runtime.files import OSFileSystem
from runtime.java import find_java
from wire.errors import LedgerError

_OPEN_FILES_WANTED: Final = 16_384
_OPEN_FILES_MIN: Final = 1_024
_SYNC_BYTES: Final = 4_096
_SYNC_SECONDS: Final = 0.5
_SYNC_COUNT_MAX: Final = 200
_SLOW_SYNC_MS: Final = 20.0
#: Not disks, but memory: what is synced there is gone with the power.
_MEMORY_FILE_SYSTEMS: Final = ("tmpfs", "ramfs")


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and what to do about it if it is not in order."""

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""


def ok(subject: str, found: str) -> Finding:
    return Finding(subject, Verdict.OK, found)


def warning(subject: str, found: str, advice: str) -> Finding:
    return Finding(subject, Verdict.WARNING, found, advice)


def failure(subject: str, found: str, advice: str) -> Finding:
    return Finding(subject, Verdict.FAILURE, found, advice)


# ---------------------------------------------------------------------- the machine


def check_python() -> Finding:
    version = sys.version.split()[0]
    missing = [name for name in _BOOKIE_PACKAGES if importlib.util.find_spec(name) is None]
    if not __debug__:
        return failure("python", f"{version} without assertions", "start Python without -O")
    if missing:
        found = f"{version}, without {', '.join(missing)}"
        return warning("python", found, "a bookie needs: pip install 'quire[bookie]'")
    return ok("python", version)


_BOOKIE_PACKAGES: Final = ("rocksdict", "prometheus_client", "starlette", "hypercorn")


def check_java() -> Finding:
    try:
        java = find_java()
    except LedgerError as error:
        return warning("java", "none that is recent enough", f"{error}")
    return ok("java", f"{java.version} at {java.path}, by {java.source.value}")


def check_limits() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES_WANTED:
        return ok("open files", f"{soft} allowed")
    advice = f"raise it: ulimit -n {_OPEN_FILES_WANTED}, or LimitNOFILE= of the service"
    if soft < _OPEN_FILES_MIN:
        return failure("open files", f"only {soft} allowed", advice)
    return warning("open files", f"{soft} allowed (hard limit {hard})", advice)


# ---------------------------------------------------------------------- configuration


def read_configuration(conf: str) -> tuple[BookieSettings | None, list[Finding]]:
    """The settings if they can be used, and everything that can be said without starting."""
    subject = f"configuration {conf}"
    try:
        read = Settings.read(conf)
        settings, _ = bookie_settings(read)
        unused = finish(read)
        described = list(check_settings(settings, Resolver()))
    except LedgerError as error:
        return None, [failure(subject, "cannot be used", str(error))]
    findings = [ok(subject, described[0])]
    findings += [warning(subject, line, "remove the key, or leave it") for line in unused]
    return settings, findings


def check_port(settings: BookieSettings) -> Finding:
    port = settings.bookie.port
    subject = f"port {port}"
    if _is_running(settings):
        return ok(subject, "the bookie is running")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            advice = "stop whoever has it, or set another bookiePort"
            return failure(subject, f"cannot be used: {error.strerror}", advice)
    return ok(subject, "free")


def _is_running(settings: BookieSettings) -> bool:
    """Whether somebody holds the lock of the first journal directory."""
    path = os.path.join(settings.storage.journals[0], CURRENT, LOCK_NAME)
    if not os.path.exists(path):
        return False
    try:
        OSFileSystem().lock(path).close()
    except OSError:
        return True
    return False


# ---------------------------------------------------------------------- disks


def check_disks(settings: BookieSettings) -> Iterator[Finding]:
    journals, ledgers = settings.storage.journals, settings.storage.ledger_directories
    for path in dict.fromkeys((*journals, *ledgers)):
        place = existing(path)
        yield _check_space(path, place, settings)
        if path in journals:
            yield check_sync(path, place)
    devices = {os.stat(existing(path)).st_dev for path in ledgers}
    shared = [path for path in journals if os.stat(existing(path)).st_dev in devices]
    if shared:
        yield warning(
            f"disk of {shared[0]}",
            "journal and ledgers share it",
            "two disks are faster; on one machine for trying out, this is fine",
        )


def existing(path: str) -> str:
    """The directory, or the one in which it will be made."""
    place = os.path.abspath(path)
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    return place


def _check_space(path: str, place: str, settings: BookieSettings) -> Finding:
    disk = os.statvfs(place)
    total, free = disk.f_frsize * disk.f_blocks, disk.f_frsize * disk.f_bavail
    used = 1 - free / total if total else 1.0
    limits = settings.upkeep.disk_options().thresholds
    found = f"{byte_count(free)} of {byte_count(total)} free, {used:.0%} used"
    subject = f"space of {path}"
    if used >= limits.full:
        advice = f"at {limits.full:.0%} the bookie takes no entries: free some space"
        return failure(subject, found, advice)
    if used >= limits.warn:
        return warning(subject, found, "the bookie collects garbage all the time: free some space")
    return ok(subject, found)


def check_sync(path: str, place: str) -> Finding:
    """Measure what the journal will do: small writes, each synced."""
    subject = f"sync in {path}"
    kind = file_system_of(place)
    if kind in _MEMORY_FILE_SYSTEMS:
        advice = "name a directory on a disk: memory forgets what it was asked to keep"
        return failure(subject, f"{place} is {kind}", advice)
    try:
        times_ms = _measure_syncs(Path(place))
    except OSError as error:
        return failure(subject, f"cannot write: {error.strerror}", "change its owner or its mode")
    median = statistics.median(times_ms)
    found = f"{median:.2f} ms (median of {len(times_ms)}), {1000 / median:,.0f} per second"
    if median > _SLOW_SYNC_MS:
        return warning(
            subject, found, "appends wait for this: a faster disk helps more than all else"
        )
    return ok(subject, found)


def _measure_syncs(place: Path) -> list[float]:
    name = place / f".quire-doctor-{os.getpid()}"
    times_ms: list[float] = []
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _SYNC_BYTES * _SYNC_COUNT_MAX)
        os.fsync(descriptor)
        deadline = time.perf_counter() + _SYNC_SECONDS
        while len(times_ms) < _SYNC_COUNT_MAX and (not times_ms or time.perf_counter() < deadline):
            begin = time.perf_counter()
            os.pwrite(descriptor, b"q" * _SYNC_BYTES, _SYNC_BYTES * len(times_ms))
            os.fdatasync(descriptor)
            times_ms.append((time.perf_counter() - begin) * 1000)
    finally:
        os.close(descriptor)
        name.unlink()
    return times_ms


def file_system_of(place: str) -> str | None:
    """The kind of file system of a directory, where the kernel tells (Linux)."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    best, kind = "", None
    real = os.path.realpath(place)
    for line in lines:
        _, mount, found, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind
