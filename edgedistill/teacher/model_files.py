"""The files of a model that is open: a model whose files change under it would be cached under a hash that is not its own."""

from __future__ import annotations

from pathlib import Path

from edgedistill import files
from edgedistill.errors import UserError


class UnchangedFiles:
    """A folder's files as they are now, when the model in it is about to be read. endings: only of files whose paths end so."""

    def __init__(self, folder: Path, endings: tuple[str, ...]) -> None:
        self.folder, self.endings = folder, endings
        self._before = self._now()

    def sha256(self) -> str:
        """The hash of their names and bytes. Raises UserError as `check`."""
        found = files.sha256_folder(self.folder, self.endings)
        self.check()
        return found

    def check(self) -> None:
        """Raise UserError where a file has changed since."""
        now = self._now()
        if changed := sorted(name for name in now | self._before if now.get(name) != self._before.get(name)):
            fact = f"{changed[0]} has changed since the model was opened, so its embeddings would be cached as another model's"
            raise UserError(f"{self.folder}: {fact}; start again, and leave the folder alone meanwhile")

    def _now(self) -> dict[str, tuple[int, int]]:
        """Size and time of change of each file."""
        found = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        stats = {name: path.stat() for name, path in found.items() if name.endswith(self.endings)}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
