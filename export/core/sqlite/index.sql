-- Index the .txt and .md files below a folder, a text for each paragraph: FTS5 for the words, and an embedding beside each.
-- In SQLite's shell, beside edgedistill.so and student.bin; texts that are there already are not embedded again:
--
--   sqlite3 notes.db ".parameter set :folder notes" ".read index.sql"
.bail on
.load ./edgedistill
create virtual table if not exists notes using fts5(text, name unindexed, embedding unindexed, tokenize = 'porter unicode61');
create virtual table if not exists words using fts5vocab(notes, instance);
create table if not exists student(one integer primary key, space text not null);
create trigger if not exists other_student before update on student when old.space <> new.space
begin select raise(abort, 'the database has embeddings of another space; remove it, and index again'); end;
insert into student values (1, embed_open('student.bin') ->> 'space') on conflict do update set space = excluded.space;

create temp table paragraphs as
with recursive split(name, text, rest) as (
  select name, '', replace(cast(data as text), char(13), '') || char(10, 10) from fsdir(:folder)
  where name like '%.txt' or name like '%.md'
  union all
  select name, trim(substr(rest, 1, instr(rest, char(10, 10)) - 1), char(9, 10, 32)), substr(rest, instr(rest, char(10, 10)) + 2)
  from split where rest <> '')
select text, min(name) as name from split where text <> '' group by text;

delete from notes where text not in (select text from paragraphs);
insert into notes select text, name, embed_document(text) from paragraphs where text not in (select text from notes);
select changes() || ' of ' || count(*) || ' texts embedded now' from notes;
