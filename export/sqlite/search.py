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

CANDIDATES = 100  # of each index, for which both scores are computed
WEIGHT = 0.75  # of BM25: the best of six, 0.25 to 1.5, on SciFact's training queries with nano
TABLES = """BEGIN; DROP TABLE IF EXISTS words; DROP TABLE IF EXISTS vectors;
CREATE VIRTUAL TABLE words USING fts5(text, name UNINDEXED, tokenize='porter unicode61');
CREATE VIRTUAL TABLE vectors USING vec0(embedding int8[{}] distance_metric=cosine)"""
FIND = """WITH matched AS MATERIALIZED (SELECT rowid AS id, -rank bm25 FROM words WHERE words MATCH :asked),
chosen AS (SELECT id FROM (SELECT id FROM matched ORDER BY bm25 DESC LIMIT :candidates) UNION
    SELECT rowid FROM vectors WHERE embedding MATCH vec_int8(:row) AND k = :candidates)
SELECT name, text, 1 - vec_distance_cosine(embedding, vec_int8(:row)), ifnull(bm25, 0) FROM chosen
JOIN words ON words.rowid = id JOIN vectors ON vectors.rowid = id LEFT JOIN matched USING (id)"""


def index(database, encoder, texts):
    """Write (name, text) pairs into both indexes, in place of what is there."""
    rows = encoder.encode_document([text for _, text in texts], precision="int8")
    with database:
        for statement in TABLES.format(encoder.dims[0]).split(";"):
            database.execute(statement)
        database.executemany("INSERT INTO words(name, text) VALUES (?, ?)", texts)
        database.executemany("INSERT INTO vectors VALUES (?, vec_int8(?))", enumerate(map(bytes, rows), 1))


def paragraphs(file):
    try:
        return re.split(r"\n\s*\n", file.read_text("utf-8"))
    except UnicodeDecodeError:
        return print(f"skipped: {file} is not UTF-8", file=sys.stderr) or []


def find(database, encoder, query, k=10):
    """The k best (score, name, text), by z-scores of cosine and BM25 among the candidates of both indexes."""
    asked = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query)) or '""'
    row = bytes(encoder.encode_query(query, precision="int8"))
    found = database.execute(FIND, {"asked": asked, "row": row, "candidates": CANDIDATES}).fetchall()
    scores = np.array([each[2:] for each in found])
    joined = (scores - scores.mean(axis=0)) / np.maximum(scores.std(axis=0), 1e-9) @ [1, WEIGHT]
    return [(joined[at], *found[at][:2]) for at in np.argsort(-joined)[:k]]


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
