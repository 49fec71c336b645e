"""A program in a terminal: tmux shows its screen and types for it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until


@dataclass
class Terminal:
    """`socket` is that of a tmux server with one window."""

    socket: Path
    patience: float  # seconds for everything that is waited for

    def _tmux(self, *command: str) -> str:
        done = subprocess.run(["tmux", "-S", str(self.socket), *command], capture_output=True, text=True, timeout=30)
        return done.stdout

    def screen(self) -> str:
        """Its text, line by line, and what was scrolled away."""
        return self._tmux("capture-pane", "-p", "-S", "-", "-t", "it")

    def shows(self, text: str) -> None:
        """Return when `text` is on the screen."""
        wait_until(lambda: text in self.screen(), self.patience, self.screen)

    def types(self, text: str) -> None:
        """Type `text`, and press Enter when it stands there."""
        self._tmux("send-keys", "-t", "it", "-l", text)
        last = text.split()[-1].strip("`")
        self.shows(last)
        self.press("Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", "-t", "it", key)


@contextmanager
def in_terminal(command: str, folder: Path, environ: Mapping[str, str], patience: float) -> Iterator[Terminal]:
    """`command` of a shell in `folder`, with these variables and no other; ended at the end."""
    socket = folder / "tmux"
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environ.items())
    terminal = Terminal(socket, patience)
    size = ["-x", "150", "-y", "60"]
    command = f"env -i TERM=xterm-256color LANG=C.UTF-8 {variables} {command}"
    start = ["tmux", "-S", str(socket), "-f", "/dev/null", "new-session", "-d", "-s", "it", *size, "-c", str(folder)]
    subprocess.run([*start, command], check=True, timeout=30)
    try:
        yield terminal
    finally:
        subprocess.run(["tmux", "-S", str(socket), "kill-server"], check=False, timeout=30)
