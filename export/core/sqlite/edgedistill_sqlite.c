/*
 * embed() in SQL, beside sqlite-vec and FTS5:
 *
 *     cc -O2 -shared -fPIC -I.. edgedistill_sqlite.c ../edgedistill.c -o edgedistill.so -lm
 *     select load_extension('./edgedistill'), embed_open('student.bin');
 *     insert into notes_vec(rowid, embedding) select id, embed_document(text) from notes;
 *     select id from notes_vec where embedding match embed_query('how do I reset it?') order by distance limit 10;
 *
 * embed, embed_query, embed_document(text [, 'float32' | 'int8' | 'bits']): a BLOB, NULL of NULL. cosine(a, b) of two float32
 * embeddings. embed_open(path) opens a student for this connection, in place of the one before; it returns what the file
 * says of it, as JSON (name, precision, space).
 */
#include "edgedistill.h"
#include <sqlite3ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
SQLITE_EXTENSION_INIT1

typedef struct { ed_student *student; void *data; int users; } opened; /* of a connection, whose functions share it */

static void release(void *p) {
    opened *o = (opened *)p;
    if (--o->users) return;
    ed_close(o->student), free(o->data), free(o);
}

static const char *read_student(opened *o, const char *path) {
    const char *error = "not readable; check the path";
    FILE *file = fopen(path, "rb");
    void *data = NULL;
    long size = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    if (size > 0 && (data = malloc((size_t)size))) {
        rewind(file);
        ed_student *s = fread(data, 1, (size_t)size, file) == (size_t)size ? ed_open(data, (size_t)size, &error) : NULL;
        if (s) ed_close(o->student), free(o->data), o->student = s, o->data = data, data = NULL, error = NULL;
    }
    if (file) fclose(file);
    return free(data), error;
}

static void fail(sqlite3_context *c, const char *place, const char *fact) {
    char *message = sqlite3_mprintf("%s: %s", place, fact);
    sqlite3_result_error(c, message ? message : fact, -1), sqlite3_free(message);
}

static void open_file(sqlite3_context *c, int count, sqlite3_value **values) {
    opened *o = (opened *)sqlite3_user_data(c);
    const char *path = (const char *)sqlite3_value_text(values[0]), *error = path ? read_student(o, path) : "no path";
    size_t size;
    (void)count;
    if (error) fail(c, path ? path : "embed_open", error);
    else path = ed_about(o->student, &size), sqlite3_result_text(c, path, (int)size, SQLITE_TRANSIENT);
}

static void embed(sqlite3_context *c, int count, sqlite3_value **values, int role) {
    opened *o = (opened *)sqlite3_user_data(c);
    const char *text = (const char *)sqlite3_value_text(values[0]);
    const char *precision = count > 1 ? (const char *)sqlite3_value_text(values[1]) : "float32";
    if (!o->student) {
        fail(c, "embed", "no student; select embed_open('student.bin') first");
        return;
    }
    if (!text) return; /* NULL */
    size_t dims = ed_size(o->student), length = (size_t)sqlite3_value_bytes(values[0]);
    int bytes = precision && !strcmp(precision, "int8"), bits = precision && !strcmp(precision, "bits");
    if (!bytes && !bits && (!precision || strcmp(precision, "float32"))) {
        fail(c, "embed", "precision: float32, int8 or bits");
        return;
    }
    float *row = (float *)malloc(dims * (sizeof *row + 1));
    const char *error = row ? ed_embed(o->student, text, length, role, row) : "not enough memory";
    void *compact = row ? row + dims : NULL;
    if (error) fail(c, "embed", error);
    else if (bytes) ed_int8(o->student, row, dims, (int8_t *)compact), sqlite3_result_blob(c, compact, (int)dims, SQLITE_TRANSIENT);
    else if (bits) ed_bits(o->student, row, dims, (uint8_t *)compact), sqlite3_result_blob(c, compact, (int)(dims / 8), SQLITE_TRANSIENT);
    else sqlite3_result_blob(c, row, (int)(dims * sizeof *row), SQLITE_TRANSIENT);
    free(row);
}

static void embed_text(sqlite3_context *c, int count, sqlite3_value **values) { embed(c, count, values, ED_TEXT); }
static void embed_query(sqlite3_context *c, int count, sqlite3_value **values) { embed(c, count, values, ED_QUERY); }
static void embed_document(sqlite3_context *c, int count, sqlite3_value **values) { embed(c, count, values, ED_DOCUMENT); }

static void cosine(sqlite3_context *c, int count, sqlite3_value **values) {
    int size = sqlite3_value_bytes(values[0]);
    const char *a = (const char *)sqlite3_value_blob(values[0]), *b = (const char *)sqlite3_value_blob(values[1]);
    double sum = 0;
    (void)count;
    if (!a || !b) return;
    if (size != sqlite3_value_bytes(values[1]) || size % 4) {
        fail(c, "cosine", "not two float32 embeddings of one student");
        return;
    }
    for (int at = 0; at < size; at += 4) {
        float x, y;
        memcpy(&x, a + at, 4), memcpy(&y, b + at, 4), sum += (double)x * y;
    }
    sqlite3_result_double(c, sum);
}

#ifdef _WIN32
__declspec(dllexport)
#endif
int sqlite3_edgedistill_init(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
    static const struct { const char *name; int least, most, flags; void (*call)(sqlite3_context *, int, sqlite3_value **); } functions[] = {
        {"embed_open", 1, 1, SQLITE_DIRECTONLY, open_file}, {"embed", 1, 2, 0, embed_text}, {"embed_query", 1, 2, 0, embed_query},
        {"embed_document", 1, 2, 0, embed_document}, {"cosine", 2, 2, SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS, cosine}};
    SQLITE_EXTENSION_INIT2(api)
    opened *o = (opened *)calloc(1, sizeof *o);
    int status = o ? SQLITE_OK : SQLITE_NOMEM;
    (void)error;
    if (o) o->users = 1;
    for (size_t at = 0; at < sizeof functions / sizeof *functions && o; at++)
        for (int n = functions[at].least; n <= functions[at].most; n++) {
            o->users++; /* given back by SQLite, also where the function is not created */
            int found = sqlite3_create_function_v2(db, functions[at].name, n, SQLITE_UTF8 | functions[at].flags, o, functions[at].call, NULL, NULL, release);
            status = status ? status : found;
        }
    if (o) release(o);
    return status;
}
