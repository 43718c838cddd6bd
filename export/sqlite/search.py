"""Search texts by words and by meaning in one SQLite file: FTS5, and sqlite-vec with int8 embeddings.

python search.py notes.db index FOLDER    the .txt and .md files below a folder, a text for each paragraph
python search.py notes.db find QUERY      the ten best texts
"""

import re
import sqlite3
import sys
from pathlib import Path

import numpy as np
import sqlite_vec

import edgedistill
from edgedistill.data.bm25 import words

WEIGHT, LONE_SHARE, LONE = 2, 0.35, 0.1  # as in edgedistill/data/bm25.py, whose `joined` explains the score
TABLES = """BEGIN; DROP TABLE IF EXISTS words; DROP TABLE IF EXISTS vectors; DROP TABLE IF EXISTS spaces;
CREATE TABLE spaces AS SELECT '{1}' AS space;
CREATE VIRTUAL TABLE words USING fts5(folded, text UNINDEXED, name UNINDEXED, tokenize='porter unicode61');
CREATE VIRTUAL TABLE vectors USING vec0(embedding int8[{0}] distance_metric=cosine)"""
COSINES = "SELECT rowid, 1 - vec_distance_cosine(embedding, vec_int8(?)) FROM vectors ORDER BY rowid"
MATCHES = "SELECT rowid, -rank FROM words WHERE words MATCH ?"
SPACE, KEPT = (
    "SELECT space FROM spaces",
    "SELECT text, embedding FROM words JOIN vectors ON words.rowid = vectors.rowid",
)
ONE = "SELECT name, text FROM words WHERE rowid = ?"


def index(database, encoder, texts):
    """Write (name, text) pairs into both indexes, in place of what is there; a text that is there is not
    embedded again."""
    rows = kept(database, encoder.space)
    new = [text for text in dict.fromkeys(text for _, text in texts) if text not in rows]
    rows |= zip(new, map(bytes, encoder.encode_document(new, precision="int8")), strict=True)
    print(f"{len(texts)} texts, {len(new)} of them embedded now")
    with database:
        for statement in TABLES.format(encoder.dims[0], encoder.space).split(";"):
            database.execute(statement)
        folded = ((" ".join(words(text)), text, name) for name, text in texts)
        database.executemany("INSERT INTO words VALUES (?, ?, ?)", folded)
        database.executemany(
            "INSERT INTO vectors VALUES (?, vec_int8(?))", enumerate((rows[text] for _, text in texts), 1)
        )


def kept(database, space):
    """{text: embedding} of a database in the encoder's space."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'spaces'").fetchone():
        return {}
    return dict(database.execute(KEPT)) if database.execute(SPACE).fetchone() == (str(space),) else {}


def paragraphs(file):
    try:
        return re.split(r"\n\s*\n", file.read_text("utf-8"))
    except UnicodeDecodeError:
        return print(f"skipped: {file} is not UTF-8", file=sys.stderr) or []


def find(database, encoder, query, k=10):
    """The k best (score, name, text): how far the cosine is above the mean, and the share of the words."""
    if (space := database.execute(SPACE).fetchone()[0]) != str(encoder.space):
        sys.exit(f"{path}: embeddings of space {space}, not {encoder.space}; index the folder again")
    row = bytes(encoder.encode_query(query, precision="int8"))
    cosines = np.array([cosine for _, cosine in database.execute(COSINES, (row,))])
    bm25, known, matched, count, whole = *np.zeros((3, len(cosines))), len(cosines), 1e-9
    for word in dict.fromkeys(words(query)):
        found = np.array(database.execute(MATCHES, (f'"{word}"',)).fetchall()).reshape(-1, 2)
        idf = np.log((count - len(found) + 0.5) / (len(found) + 0.5))  # FTS5's
        if idf > 0:  # not of a word that half of the texts have
            whole, at = whole + idf, found[:, 0].astype(int) - 1
            bm25[at], known[at], matched[at] = bm25[at] + found[:, 1] / 2.2, known[at] + idf, matched[at] + 1
    share = np.where((matched == 1) & (known < LONE_SHARE * whole), LONE, 1) * bm25 / whole
    scores = (cosines - cosines.mean()) / max(1 - cosines.mean(), 1e-6) + WEIGHT * share
    best = np.argsort(-scores, kind="stable")[:k].tolist()
    return [(float(scores[at]), *database.execute(ONE, (at + 1,)).fetchone()) for at in best]


if __name__ == "__main__":
    path, verb, given = sys.argv[1:] if len(sys.argv) == 4 else sys.exit(__doc__)
    database, encoder = sqlite3.connect(path), edgedistill.load("nano")
    database.enable_load_extension(True)  # missing where Python was built without: see README.md
    sqlite_vec.load(database)
    if verb == "index":
        files = [file for file in sorted(Path(given).rglob("*")) if file.suffix in (".txt", ".md")]
        found = [(str(file), text) for file in files for text in paragraphs(file) if text.strip()]
        index(database, encoder, found or sys.exit(f"{given}: no texts in .txt and .md files; name another"))
    for score, name, text in find(database, encoder, given) if verb == "find" else ():
        print(f"{score:5.2f}  {name}: {' '.join(text.split())[:80]}")
