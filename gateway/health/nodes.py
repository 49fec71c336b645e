"""Is a machine down? Told from what lives on it, for engines that need several machines: such a one may answer
`/health` on the first while the second is gone. Pure, and slow to accuse.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


class Nodes:
    """What was last seen of each node's witnesses: the backends that live on it alone, and its exporter."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, bool]] = {}  # node -> backend -> does its port take connections?
        self._exporters: dict[str, bool] = {}
        self._were_up: set[str] = set()
        self._excused: dict[str, set[str]] = {}  # backend -> nodes that it has proved to need no longer

    def saw(self, node: str, witness: str, *, there: bool) -> None:
        """A check of a backend on this node alone."""
        self._seen.setdefault(node, {})[witness] = there
        self._note(node)

    def saw_exporter(self, node: str, *, there: bool) -> None:
        self._exporters[node] = there
        self._note(node)

    def keep(self, witnesses: Mapping[str, str], exporters: Collection[str]) -> None:
        """From now on only these tell: backends that live on one node alone, with that node, and the exporters of these
        nodes."""
        for node, seen in self._seen.items():
            self._seen[node] = {name: there for name, there in seen.items() if witnesses.get(name) == node}
        self._exporters = {node: there for node, there in self._exporters.items() if node in exporters}

    def down(self, node: str) -> bool:
        """All that lives there alone is gone, its exporter too; and something was there before."""
        if node not in self._were_up:
            return False  # what was never seen may be off on purpose, or not be looked at rightly
        return bool(self._seen.get(node) or node in self._exporters) and not self._up(node)

    def fallen(self, backend: str, nodes: Sequence[str]) -> str | None:
        """The node that takes this backend down with it."""
        excused = self._excused.get(backend, set())
        return next((node for node in nodes if node not in excused and self.down(node)), None)

    def excuse(self, backend: str, nodes: Sequence[str]) -> None:
        """It works, so those of its nodes that seem down are not, or not needed: until they are seen up again."""
        found = {node for node in nodes if self.down(node)}
        if found:
            self._excused.setdefault(backend, set()).update(found)

    def _up(self, node: str) -> bool:
        return self._exporters.get(node, False) or any(self._seen.get(node, {}).values())

    def _note(self, node: str) -> None:
        if self._up(node):
            self._were_up.add(node)
            for excused in self._excused.values():
                excused.discard(node)
