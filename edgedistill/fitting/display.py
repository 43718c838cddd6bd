"""What a fit shows while it works: lines in the log, a table on a terminal, and the page. A thread of its own keeps them up to date."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.live import Live

from edgedistill.errors import UserError
from edgedistill.fitting import fit_page, front
from edgedistill.fitting.processes import Presence
from edgedistill.fitting.storage import Storage, result
from edgedistill.session import Session

PAGE = "fit.html"
EVERY_S = 2.0


class Display:
    """The state of a fit, shown. live: the terminal's table, None elsewhere."""

    def __init__(self, storage: Storage, presence: Presence, session: Session, live: Live | None) -> None:
        self.storage, self.presence, self.session, self.live = storage, presence, session, live
        self.logged = {key for key, _ in self._events()}  # of what was done before this process came

    def show(self) -> None:
        """Log what has happened since the last time, by whichever process; write the page, and the table."""
        for key, line in self._events():
            if key not in self.logged:
                self.logged.add(key)
                self.session.log(line)
        won = (result(self.storage.folder) or {}).get("winner")
        found = front.read(self.storage, [] if won else self.presence.all(), won)
        fit_page.write(self.storage.folder / PAGE, found)
        if self.live is not None:
            self.live.update(front.table(found), refresh=True)

    def _events(self) -> list[tuple[str, str]]:
        """(key, line) of every rung that a candidate has reached, and of every fall."""
        schedule = self.storage.get("schedule")
        if schedule is None:
            return []
        rungs, found = len(schedule["counts"]), list[tuple[str, str]]()
        for entry in self.storage.entries():
            for rung, score in sorted(entry.scores.items()):
                found.append((f"{entry.number} {rung}", front.line(entry.name, rung, rungs, score)))
            if entry.fell is not None:
                found.append((f"{entry.number} fell", f"{entry.name}: fell {entry.fell}"))
        return found


@contextmanager
def shown(storage: Storage, presence: Presence, session: Session) -> Iterator[Session]:
    """Show the fit while the block runs. Yields a session whose log goes above the terminal's table, where there is one."""
    if not session.progress:
        with _every(EVERY_S, Display(storage, presence, session, None)):
            yield session
        return
    with Live(console=Console(stderr=True, highlight=False), auto_refresh=False) as live:

        def log(line: str) -> None:
            live.console.print(line, markup=False, soft_wrap=True)

        inside = replace(session, log=log, progress=False)
        with _every(EVERY_S, Display(storage, presence, inside, live)):
            yield inside


@contextmanager
def _every(seconds: float, display: Display) -> Iterator[None]:
    """Show in a thread, and once more at the end."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            try:
                display.show()
            except (OSError, UserError):
                continue  # a full disk, which the work itself meets too

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
        ended.set()
        thread.join()
        display.show()
    finally:
        ended.set()
        thread.join()
