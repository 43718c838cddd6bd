-- The ten best texts of what index.sql made, by meaning and by words: the score of edgedistill/data/bm25.py, without texts' lengths.
--
--   sqlite3 notes.db ".parameter set :query 'how do I get my money back'" ".read find.sql"
.bail on
.load ./edgedistill
insert into student values (1, embed_open('student.bin') ->> 'space') on conflict do update set space = excluded.space;
create temp table query(text text not null, embedding);
insert into query values (:query, embed_query(:query));
create virtual table temp.asked using fts5(text, tokenize = 'porter unicode61'); -- which makes stems of the query's words
create virtual table temp.asked_words using fts5vocab(temp, asked, row);
insert into asked select text from query;

with hits as materialized (
  select term, doc, count(*) / (count(*) + .9) as part from words where term in (select term from asked_words) group by term, doc),
weights as materialized (
  select term, ln(1 + (total - texts + .5) / (texts + .5)) as idf
  from (select term, (select count(*) from hits where hits.term = asked_words.term) as texts from asked_words),
       (select count(*) as total from notes)),
shares as materialized ( -- of the query's words; one of several, if it is no rare one, says little
  select doc, sum(idf * part) / whole * iif(count(*) = 1 and sum(idf) < .35 * whole, .1, 1) as share
  from hits join weights using (term), (select sum(idf) as whole from weights) group by doc),
cosines as materialized (
  select notes.rowid as doc, cosine(notes.embedding, query.embedding) as cosine from notes, query)
select printf('%5.2f', (cosine - mean) / max(1 - mean, 1e-6) + 2 * coalesce(share, 0)), name, replace(substr(text, 1, 80), char(10), ' ')
from cosines join notes on notes.rowid = doc left join shares using (doc), (select avg(cosine) as mean from cosines)
order by (cosine - mean) / max(1 - mean, 1e-6) + 2 * coalesce(share, 0) desc limit 10;
