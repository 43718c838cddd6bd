"""What became of the files that a command read: how many there were, what was skipped and why, what was
cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from edgedistill.errors import counted, escaped, shown

LONGEST = 60  # letters of a reason on the line that a command logs; its JSON has all


def endings(counts: Iterable[Counter[str]]) -> str:
    """The commonest endings of files in folders, with their numbers."""
    commonest = sum(counts, Counter()).most_common(6)
    return ", ".join(f"{count:,} {ending}" for ending, count in commonest)


@dataclass
class Reading:
    """Filled while files are read; a command logs `line` at its end and has `report` in its JSON."""

    files: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # file -> reason
    source: list[str] = field(default_factory=list, repr=False)  # the lines of the document that is read
    columns: dict[str, list[str]] = field(default_factory=dict)  # table -> its columns, where none was named
    # file -> what -> which of it
    not_read: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    other_types: dict[str, Counter[str]] = field(default_factory=dict)  # folder -> ending -> how many
    rows_left_out: Counter[str] = field(default_factory=Counter)  # reason -> how many, of what is trained on
    texts_cut: int = 0
    tokens_cut: int = 0
    unknown_tokens: int = 0  # for which the vocabulary has no other than the unknown token
    unknown_texts: int = 0  # without any other
    added: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)  # by the key of each

    def add(self, key: str, other: dict[str, Any]) -> None:
        """Add the report of what was read before, such as a corpus; in place of an earlier one of that key,
        as the same files are read again when it is known what of them is measured."""
        earlier = self.added.get(key, {})
        self.added[key] = other
        for name, value in other.items():
            before = getattr(self, name)
            if isinstance(before, Counter):
                before.update(value)
                before.subtract(earlier.get(name, {}))
            elif isinstance(before, dict):
                before.update(value)
            else:
                setattr(self, name, before + value - earlier.get(name, 0))

    def leave_out(self, name: str, what: str, which: Any) -> None:
        """Note a part of a file that is not read: a key of its front matter, the number of a page."""
        known = self.not_read.setdefault(name, {}).setdefault(what, [])
        known += [] if which in known else [which]

    def skip(self, path: str, problem: Exception, name: str = "") -> None:
        """Note a file that was not read, by its path or another name, with the fact of its error."""
        fact = str(problem).removeprefix(f"{path}: ").partition("; ")[0]
        of_system = problem.strerror if isinstance(problem, OSError) else None
        self.skipped[name or path] = of_system.lower() if of_system else fact
        for noted in (self.columns, self.not_read):
            noted.pop(path, None)

    def closed(self, error: OSError) -> None:
        """Note a folder that cannot be opened."""
        self.skip(error.filename, error)

    def tokens(self, not_read: Iterable[tuple[int, int, bool]]) -> None:
        """Note what an encoder does not read of texts, as `Bundle.not_read` counts it."""
        for cut, unknown, alone in not_read:
            self.texts_cut += cut > 0
            self.tokens_cut += cut
            self.unknown_tokens += unknown
            self.unknown_texts += alone

    @property
    def report(self) -> dict[str, Any]:
        """As the JSON of a command has it."""
        return {name: value for name, value in vars(self).items() if name not in ("added", "source")}

    @property
    def line(self) -> str:
        """The counts in one line, with one example of what was not read; `report` has all."""
        line = [f"read {counted(self.files, 'file')}"]
        if others := endings(self.other_types.values()):
            line.append(f"other types, not read: {others}")
        skipped = [f"{name} ({shown(why, LONGEST, quoted=False)})" for name, why in self.skipped.items()]
        for what, names in (("skipped", skipped), ("read in part", [*self.not_read])):
            if names:
                line.append(f"{what} {len(names):,}: {names[0]}{', …' * (len(names) > 1)}")
        if left_out := ", ".join(f"{count:,} {why}" for why, count in self.rows_left_out.items() if count):
            line.append(f"rows left out: {left_out}")
        if self.texts_cut:
            texts = counted(self.texts_cut, "text")
            line.append(f"{texts} cut at the encoder's limit, {counted(self.tokens_cut, 'token')} not read")
        if self.unknown_texts:
            line.append(f"{counted(self.unknown_texts, 'text')} without a token that the student knows")
        return escaped("; ".join([*line, *["--json names all"] * bool(self.skipped or self.not_read)]))
