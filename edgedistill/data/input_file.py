"""Open a file of texts: its type by ending and content, its numbered lines, and what its reader raises for a
damaged one as UserError."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

from edgedistill import files, object_store
from edgedistill.errors import UserError, first_line, unknown_name

MAX_LINE_BYTES = 16_000_000  # of a .jsonl, .tsv or .csv row, which may hold more than the text

SAME = {".htm": ".html", ".markdown": ".md", ".mdx": ".md", ".ndjson": ".jsonl"}  # read as
# all of it is text; the others have columns
WHOLE_TEXT = (".txt", ".md", ".markdown", ".mdx", ".rst", ".html", ".htm", ".pdf")
KINDS = (*WHOLE_TEXT, ".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".parquet")
# what is counted in a file, where it is not lines
NUMBERED = {".parquet": "row", ".json": "item", ".pdf": "page"}
CONVERTED = (".docx", ".odt", ".epub", ".rtf", ".tex", ".ipynb", ".adoc", ".org")  # by pandoc
NAMED = (*KINDS, *CONVERTED)  # files that a folder is read for

GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"
MARKS = {  # byte order marks; that of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
MOST_RECODED = 64_000_000  # bytes of a file in UTF-16 or UTF-32, which is read whole
MOST_HEAD = 64_000  # bytes of a page in which its charset is looked for
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';]+)", re.I)
_OF_XML = re.compile(rb"\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.-]+)")
# As browsers read these (WHATWG Encoding): by codec, or by label where Python knows none.
BY_BROWSERS = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "shift_jis": "cp932",
    "x-sjis": "cp932",
    "windows-31j": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "x-gbk": "gb18030",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    "utf-16": "utf-8",
    "utf-16-le": "utf-8",
    "utf-16-be": "utf-8",
    "unicode": "utf-8",
}
# What tells of another alphabet: its begin, two signs of Chinese, a letter with an accent.
_ESCAPES = re.compile(
    r"(?P<ISO_2022>\x1b(?:\$|\(I))|(?P<HZ>~\{(?:[!-w][!-~]){2,}~\})|(?P<UTF_7>\+A[I-P][AEIMQUYcgkosw048]-)"
)
SIGNATURES = {  # the first bytes of what is no text: (its name, way out)
    GZIP: ("gzip within gzip", "unpack it once"),
    PARQUET: ("a parquet file", "rename it to end in .parquet"),
    b"PK\x03\x04": ("a zip archive, as .xlsx and .docx are", "unpack it, or save it as .csv or .txt"),
    b"%PDF-": ("a PDF", "rename it to end in .pdf"),
}
OPEN_QUOTE = 'a quote (") that opens in this row is not closed; close it, or double it'
MOST_NULS = 0.1  # of a file's first line; UTF-16 without a byte order mark has more


def kind(path: Path) -> str:
    """The type of a file, one of KINDS but for those of SAME.

    By its ending in any case, without .gz. A .json file with an object a line is read as .jsonl. A stream
    without ending, such as /dev/stdin, is .txt. Raises UserError for any other.
    """
    plain = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    suffix = plain.suffix.lower()
    if not suffix and path.exists() and not path.is_file():
        return ".txt"
    if suffix in CONVERTED:
        command = f"pandoc --to plain --wrap none {path} --output {plain.with_suffix('.txt').name}"
        raise UserError(f"{path}: {suffix} files are not read; convert it first, for example: {command}")
    if suffix not in KINDS:
        way_out = "rename it if it is one of them; `edgedistill embed nano` reads lines from stdin"
        raise UserError(f"{path}: {unknown_name('file type', suffix, KINDS)}, each also .gz; {way_out}")
    if suffix == ".json":
        with opened(path) as file, damage_as_user_error(str(path), lambda: "at its start"):
            text = _recoded(file, str(path))
            read = (
                line.strip(b"\r\n\xef\xbb\xbf") for line in iter(partial(text.readline, MAX_LINE_BYTES), b"")
            )
            first, second = [*islice(filter(bytes.strip, read), 2), b"", b""][:2]
        return ".jsonl" if first.startswith(b"{") and second.startswith(b"{") else ".json"
    return SAME.get(suffix, suffix)


def content_id(path: Path) -> Any:
    """What identifies the content of a file: its sha256, or what its object store says of it; None where it
    cannot be read, as its reader says."""
    try:
        return path.version if isinstance(path, object_store.StoredFile) else files.sha256_file(path)
    except OSError:
        return None


def numbered(path: Path) -> str:
    """What is counted in a file: row, item or line."""
    return NUMBERED.get(kind(path), "line")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked where they are gzip, whatever its ending. Raises UserError for a .gz that
    is not."""
    with object_store.opened(path) as file:
        packed = file.peek(2)[:2] == GZIP
        if not packed and path.suffix.lower() == ".gz" and file.peek(1):
            raise UserError(f"{path}: ends in .gz and is not a gzip file; fetch it again, or rename it")
        yield gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[misc]


def lines(path: Path, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, str]]:
    """The numbered lines of a file, decoded, without line ends and byte order mark. Raises UserError as
    `stream_lines`."""
    with opened(path) as file:
        yield from stream_lines(file, str(path), max_bytes)


def decoded(data: bytes, name: str, declared: bool = False) -> str:
    """All of a file as text with line ends of LF, in the encoding that its byte order mark or, with
    `declared`, the page itself names; else UTF-8. Raises UserError as `stream_lines`."""
    encoding = _marked(data)
    if encoding is None:
        _refuse_binary(data.partition(b"\n")[0], name)
    if encoding is None and declared and (data.isascii() or not _is_utf8(data)):
        encoding = _declared(data[:MOST_HEAD], name)
    encoding = encoding or "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}: line {line}: {_damage(error)}") from None
    _refuse_escapes(text, name)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_utf8(data: bytes) -> bool:
    """Whether all of it is UTF-8, whatever the page says: text in another encoding hardly ever is."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _declared(start: bytes, name: str) -> str | None:
    """The encoding that a page's first bytes declare, in `<meta>` or as XML. Raises UserError for an unknown
    one."""
    from selectolax.lexbor import LexborHTMLParser

    of_xml = _OF_XML.match(start)
    labels = [of_xml[1].decode()] if of_xml else []
    for meta in LexborHTMLParser(start.decode("latin-1")).css("meta[charset], meta[http-equiv][content]"):
        about = meta.attributes
        labels += [about.get("charset")] if "charset" in about else _CHARSET.findall(about["content"] or "")
    label = next((label.strip().lower() for label in labels if label), None)
    if label is None:
        return None
    try:
        codec = codecs.lookup(BY_BROWSERS.get(label, label)).name
        "".encode(codec)  # not rot13 and its like
    except (LookupError, ValueError):
        raise UserError(f"{name}: charset {label!r} is unknown; save it as UTF-8") from None
    return BY_BROWSERS.get(codec, codec)


def _marked(data: bytes) -> str | None:
    """The encoding that a byte order mark names."""
    return next((encoding for mark, encoding in MARKS.items() if data.startswith(mark)), None)


def _recoded(file: IO[bytes], name: str) -> IO[bytes]:
    """The file in UTF-8, where its byte order mark is that of UTF-16 or UTF-32."""
    peek: Any = file if hasattr(file, "peek") else io.BufferedReader(file)
    file = peek
    encoding = _marked(peek.peek(4)[:4])
    if encoding in (None, "utf-8-sig"):
        return file
    data = file.read(MOST_RECODED + 1)
    if len(data) > MOST_RECODED:
        raise UserError(f"{name}: over {MOST_RECODED:,} bytes of {encoding}; save it as UTF-8")
    return io.BytesIO(data.decode(encoding).encode())


def stream_lines(file: IO[bytes], name: str, max_bytes: int) -> Iterator[tuple[int, str]]:
    """The same of a stream, which `name` names in errors.

    Raises UserError, with the line's number, for a byte that is not UTF-8, a line that never ends or holds a
    carriage return, as all of a file whose lines end in CR alone; for damaged gzip and binary files.
    """
    number = 1
    with damage_as_user_error(name, lambda: f"line {number}"):
        file = _recoded(file, name)
        while line := file.readline(max_bytes + 1):
            if number == 1:
                _refuse_binary(line, name)
            if len(line) > max_bytes:
                raise UserError(
                    f"{name}: line {number} is over {max_bytes:,} bytes; split the file into lines"
                )
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            _refuse_escapes(text, name)
            if "\r" in text:
                raise UserError(
                    f"{name}: line {number} holds a carriage return; save the file with line ends of LF or "
                    "CR LF"
                )
            yield number, text
            number += 1


def _refuse_binary(line: bytes, name: str) -> None:
    """Raise UserError where the first line of a text is that of another kind of file."""
    for signature, (what, way_out) in SIGNATURES.items():
        if line.startswith(signature):
            raise UserError(f"{name}: {what}, not UTF-8 text; {way_out}")
    if line.count(0) > MOST_NULS * len(line):
        raise UserError(f"{name}: binary, or UTF-16 without a byte order mark; save it as UTF-8 text")


def _refuse_escapes(text: str, name: str) -> None:
    """Raise UserError for text that changes its alphabet: all of its bytes are ASCII."""
    may_be = any(sign in text for sign in ("\x1b", "~{", "+A"))  # the pattern takes far longer
    if may_be and (escape := _ESCAPES.search(text)):
        raise UserError(f"{name}: {str(escape.lastgroup).replace('_', '-')}, not UTF-8; save it as UTF-8")


@contextmanager
def damage_as_user_error(name: str, place: Callable[[], str]) -> Iterator[None]:
    """The one border to zlib, json, csv, pyarrow and numpy: what they raise for a damaged file is raised as
    UserError.

    `place` says where in the file the reader is. Errors of the file system, and our own, pass.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (fact := _damage(error)) is None:
            raise
        raise UserError(f"{name}: {place()}: {fact}") from None


def _damage(error: Exception) -> str | None:
    """The fact and the way out where a library raised this for what is in a file; otherwise None."""
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        encoding = error.encoding.upper()
        return f"byte {byte:#04x} is not {encoding}; convert the file, for example with iconv"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}); correct it"
    if isinstance(error, RecursionError):
        return "nested too deeply; correct it"
    if isinstance(error, csv.Error):
        is_open = "end of data" in str(error) or "field limit" in str(error)
        return OPEN_QUOTE if is_open else f"{error}; is this a .csv file?"
    of_pyarrow = type(error).__module__.startswith(
        "pyarrow"
    )  # pyarrow is optional, so its classes are not imported
    if (
        of_pyarrow
        or isinstance(error, EOFError | zlib.error)
        or (isinstance(error, OSError) and error.errno is None)
    ):
        return f"damaged ({first_line(error)}); fetch the file again"
    return None
