"""Who was registered when, as the tree itself knows it: everybody else hears of it later."""

from __future__ import annotations

from typing import Final

import trio

from metadata.memory_tree import Tree
from metadata.paths import ClusterPaths

_FAR: Final = float("inf")


class Registrations:
    def __init__(self, root: str) -> None:
        paths = ClusterPaths(root)
        self._directories = (paths.available, paths.readonly)
        self._present: frozenset[str] = frozenset()
        self._absences: dict[str, list[tuple[float, float]]] = {}

    def look(self, tree: Tree) -> None:
        present: set[str] = set()
        for directory in self._directories:
            znode = tree.find(directory)
            present |= znode.children if znode is not None else set()
        if present == self._present:
            return
        now = trio.current_time()
        for name in self._present - present:
            self._absences.setdefault(name, []).append((now, _FAR))
        for name in present - self._present:
            if self._absences.get(name):
                left, _ = self._absences[name][-1]
                self._absences[name][-1] = (left, now)
        self._present = frozenset(present)

    def absent_since(self, name: str) -> float:
        """Never if it is there."""
        absences = self._absences.get(name, [])
        return absences[-1][0] if absences and absences[-1][1] == _FAR else _FAR

    def longest_absence(self, name: str, *, since: float, slack: float) -> float:
        """How long it was away, between `since` and `slack` seconds ago or later, in one go.

        A return that lasted less than the slack counts as none: not everybody has heard of it.
        """
        now = trio.current_time()
        longest, start, end = 0.0, _FAR, -_FAR
        for left, back in self._absences.get(name, []):
            if left - end > slack:
                start = left
            end = min(back, now)
            if end >= now - slack:
                longest = max(longest, end - max(start, since))
        return longest
