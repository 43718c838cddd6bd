/*
 * Reads a static student from one file, in C99 (not C++) and without any library but libm; README.md beside this has the format.
 *
 *     const char *error;
 *     student *s = student_open(data, size, &error);      // keeps no copy: data must stay; NULL and an error where it is no student
 *     float *embedding = malloc(s->dims * sizeof(float)); // of unit length, once it is filled:
 *     error = student_encode(s, text, strlen(text), STUDENT_TEXT, embedding); // NULL, or what is wrong
 *     student_close(s);
 *
 * An opened student is never changed, so threads may share it.
 */
#ifndef STUDENT_H
#define STUDENT_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STUDENT_TEXT, STUDENT_QUERY, STUDENT_DOCUMENT, STUDENT_ROLES };
/* what a run of characters becomes; above: the first one's letter, or a place where above 21 bits stands how many letters */
enum { STUDENT_REMOVED, STUDENT_SPACE, STUDENT_ALONE, STUDENT_HANGUL, STUDENT_SEQUENCE = 21, STUDENT_PLACE = (1 << 21) - 1 };
enum { STUDENT_START = 16, STUDENT_NUMBERS = 15, STUDENT_LONGEST_WORD = 1000, STUDENT_LAST = 0x10FFFF, STUDENT_MOST = 1 << 24 };
#define STUDENT_ENDS "; get the file again, or export it again"
#define STUDENT_SIZES "damaged: its sizes do not fit together" STUDENT_ENDS
#define STUDENT_MEMORY "not enough memory"

typedef struct { const uint8_t *text; uint32_t size, number; } student_string; /* number: an id, or a role */
typedef struct { int32_t rows, codes, bits, group, groups, bytes; double factor; const uint8_t *code, *scales, *values; } student_matrix;
typedef struct {
    /* as they stand in the file: */
    int32_t length, tokens, width, dims, biases, tanh, max_tokens, longest_word, unknown, before, after, added, runs, letters, golden;
    const uint8_t *around, *run, *letter, *bias, *weights;
    student_matrix table, head;
    student_string *token, *add, prompt[STUDENT_ROLES], prefix;
    uint32_t *slots, mask; /* a hash table of ids + 1; the golden texts stand behind the added tokens */
} student;
typedef struct { const uint8_t *data; size_t at, size; const char *error; } student_reader;
typedef struct { const student *s; uint32_t *ids; size_t count, most, bytes, letters; uint8_t word[4 * STUDENT_LONGEST_WORD]; } student_ids;

static inline uint32_t student_u32(const uint8_t *p) { return (uint32_t)(p[0] | p[1] << 8 | p[2] << 16) | (uint32_t)p[3] << 24; }
static inline int32_t student_i32(const uint8_t *p, int64_t at) { return (int32_t)student_u32(p + 4 * at); }

static inline float student_float(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }

/* float16, read as a float32 of the same bits, which is 2^112 times too small */
static inline double student_half(const uint8_t *p) {
    return (p[1] & 128 ? -0x1p112 : 0x1p112) * student_float((p[0] | (p[1] & 127u) << 8) << 13);
}

/* The character that starts at *at, which moves behind it; -1 where there is none in UTF-8. */
static inline int32_t student_character(const uint8_t *text, size_t size, size_t *at) {
    static const int32_t least[] = {0, 0x80, 0x800, 0x10000};
    int32_t code = text[(*at)++], more = code < 0x80 ? 0 : code < 0xC2 ? -1 : code < 0xE0 ? 1 : code < 0xF0 ? 2 : code < 0xF5 ? 3 : -1;
    if (more > 0) code &= 0x3F >> more;
    for (int32_t left = more; left > 0; left--) {
        if (*at == size || (text[*at] & 0xC0) != 0x80) return -1;
        code = code << 6 | (text[(*at)++] & 0x3F);
    }
    return more < 0 || code < least[more] || code > STUDENT_LAST || (code >= 0xD800 && code < 0xE000) ? -1 : code;
}

static inline int student_is_utf8(const uint8_t *text, size_t size) {
    for (size_t at = 0; at < size;) if (student_character(text, size, &at) < 0) return 0;
    return 1;
}

/* The CRC-32 of all behind itself. */
static inline uint32_t student_checksum(const student_reader *r) {
    uint32_t found = ~(uint32_t)0;
    for (size_t bit = 8 * STUDENT_START; bit < 8 * r->size; bit++) {
        found ^= bit % 8 ? 0 : r->data[bit / 8];
        found = found >> 1 ^ (0xEDB88320 & -(found & 1));
    }
    return ~found;
}

/* Where the next count * each bytes start; of a file that does not have them, any place of it, and an error. */
static inline const uint8_t *student_take(student_reader *r, int64_t count, int64_t each) {
    uint64_t left = r->size - r->at;
    if (!r->error && (count < 0 || each < 0 || (each && (uint64_t)count > left / (uint64_t)each))) r->error = STUDENT_SIZES;
    if (r->error) return r->data;
    r->at += (size_t)(count * each);
    return r->data + r->at - (size_t)(count * each);
}

static inline student_string student_text(student_reader *r, int has_number) {
    student_string found = {NULL, 0, has_number ? student_u32(student_take(r, 1, 4)) : 0};
    int32_t size = student_i32(student_take(r, 1, 4), 0);
    found.text = student_take(r, size, 1);
    found.size = r->error ? 0 : (uint32_t)size;
    if (!student_is_utf8(found.text, found.size)) r->error = "damaged: a text that is not UTF-8" STUDENT_ENDS;
    return found;
}

/* A matrix of rows of its own, or of centroids, which PQ codes of every token select. */
static inline student_matrix student_rows(student_reader *r, const student *s) {
    const uint8_t *n = student_take(r, 5, 4);
    student_matrix m = {student_i32(n, 0), student_i32(n, 1), student_i32(n, 2), student_i32(n, 3), 0, 0, ldexp(1, student_i32(n, 4)), n, n, n};
    int sound = (m.bits == 4 || m.bits == 8) && m.group > 0 && m.group <= s->width && m.factor >= 0x1p-64 && m.factor <= 0x1p64;
    if (!sound || m.codes < 0 || m.codes > s->width || m.rows > (m.codes ? 256 : STUDENT_MOST)) return r->error = STUDENT_SIZES, m;
    m.groups = (s->width - 1) / m.group + 1, m.bytes = (s->width * m.bits + 7) / 8;
    m.code = student_take(r, s->tokens, m.codes);
    for (int64_t at = (int64_t)s->tokens * m.codes; at-- > 0 && !r->error;) if (m.code[at] >= m.rows) r->error = STUDENT_SIZES;
    m.scales = student_take(r, m.rows, 2 * (int64_t)m.groups), m.values = student_take(r, m.rows, m.bytes);
    return m;
}

/* The slot of prefix + text in the hash table: its own, or the empty one where it belongs. */
static inline uint32_t *student_slot(const student *s, student_string prefix, const uint8_t *text, size_t size) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t at = 0; at < prefix.size; at++) hash = (hash ^ prefix.text[at]) * 16777619u;
    for (size_t at = 0; at < size; at++) hash = (hash ^ text[at]) * 16777619u;
    for (;; hash++) {
        uint32_t *slot = s->slots + (hash & s->mask);
        if (!*slot) return slot;
        const student_string *found = s->token + (*slot - 1);
        if (found->size == prefix.size + size && !memcmp(found->text, prefix.text, prefix.size) &&
            !memcmp(found->text + prefix.size, text, size)) return slot;
    }
}

static inline void student_close(student *s) { if (s) free(s->token), free(s->slots), free(s->add), free(s); }

static inline const char *student_read(student *s, student_reader *r) {
    int32_t numbers[STUDENT_NUMBERS];
    if (r->size < 8 || memcmp(r->data, "edstudnt", 8)) return "not a student file" STUDENT_ENDS;
    if (r->size < STUDENT_START + sizeof numbers) return "damaged: cut off" STUDENT_ENDS;
    if (student_u32(r->data + 8) != 3) return "another version of the format; get a reader of that version, or export again";
    for (int at = 0; at < STUDENT_NUMBERS; at++) numbers[at] = student_i32(student_take(r, 1, 4), 0);
    memcpy(s, numbers, sizeof numbers); /* the first fields of a student */
    if (s->length < 0 || (size_t)s->length != r->size) return "damaged: cut off" STUDENT_ENDS;
    if (student_checksum(r) != student_u32(r->data + 12)) return "damaged: its checksum is wrong" STUDENT_ENDS;
    int sound = s->tokens > 0 && s->width > 0 && s->width <= 1 << 16 && s->dims > 0 && s->dims <= 1 << 16 && s->max_tokens > 0;
    sound &= s->tokens <= STUDENT_MOST && s->max_tokens <= STUDENT_MOST && s->longest_word > 0 && s->longest_word <= STUDENT_LONGEST_WORD;
    for (int at = 9; at < STUDENT_NUMBERS; at++) sound &= numbers[at] >= 0;
    if (!sound || s->unknown < 0 || s->unknown >= s->tokens || (int64_t)s->before + s->after >= s->max_tokens) return STUDENT_SIZES;
    s->around = student_take(r, s->before + s->after, 4), s->run = student_take(r, s->runs, 12);
    s->letter = student_take(r, s->letters, 4), s->bias = student_take(r, s->biases, 4);
    s->table = student_rows(r, s), s->head = student_rows(r, s);
    s->weights = student_take(r, s->table.codes ? s->tokens : 0, 2);
    sound &= (s->table.codes || s->table.rows == s->tokens) && !s->head.codes;
    sound &= (s->head.rows ? s->head.rows : s->width) == s->dims && (!s->biases || s->biases == s->dims);
    student_string words = student_text(r, 0);
    for (int role = 0; role < STUDENT_ROLES; role++) s->prompt[role] = student_text(r, 0);
    s->prefix = student_text(r, 0);
    if (r->error || (size_t)s->added > r->size / 8 || (size_t)s->golden > r->size / 8) return r->error ? r->error : STUDENT_SIZES;
    for (s->mask = 1; s->mask < 2 * (uint32_t)s->tokens; s->mask *= 2) {}
    s->token = calloc((size_t)s->tokens, sizeof *s->token), s->slots = calloc(s->mask--, sizeof *s->slots);
    s->add = calloc((size_t)(s->added + s->golden) + 1, sizeof *s->add);
    if (!s->token || !s->slots || !s->add) return STUDENT_MEMORY;
    for (int32_t at = 0; at < s->added + s->golden && sound; at++) {
        s->add[at] = student_text(r, 1);
        if (at >= s->added) student_take(r, s->dims, 2);
        int32_t most = at < s->added ? s->tokens : STUDENT_ROLES;
        sound = !r->error && s->add[at].number < (uint32_t)most && (s->add[at].size || at >= s->added);
    }
    for (int32_t at = 0; at < s->before + s->after; at++) sound &= student_u32(s->around + 4 * at) < (uint32_t)s->tokens;
    for (int32_t at = 0; at < s->letters; at++) sound &= student_u32(s->letter + 4 * at) <= STUDENT_LAST;
    for (int32_t at = 0, past = -1, first, last, to, several; at < s->runs; at++, past = last) {
        first = student_i32(s->run, 3 * at), last = student_i32(s->run, 3 * at + 1), to = student_i32(s->run, 3 * at + 2);
        several = to >> STUDENT_SEQUENCE;
        sound &= first > past && last >= first && last <= STUDENT_LAST && to >= 0;
        sound &= to != STUDENT_HANGUL || (first >= 0xAC00 && last <= 0xD7A3);
        sound = sound && (several ? (to & STUDENT_PLACE) + several <= s->letters : to + last - first <= STUDENT_LAST);
    }
    if (r->error || !sound || r->at != r->size) return r->error ? r->error : STUDENT_SIZES;
    const uint8_t *start = words.text, *last = start + words.size, *end;
    for (int32_t count = 0; count < s->tokens; count++, start = end + 1) {
        if (start > last) return STUDENT_SIZES;
        if (!(end = memchr(start, 0, (size_t)(last - start)))) end = last;
        s->token[count] = (student_string){start, (uint32_t)(end - start), 0};
        if (end > start) *student_slot(s, (student_string){start, 0, 0}, start, (size_t)(end - start)) = (uint32_t)count + 1;
    }
    return start == last + 1 ? NULL : STUDENT_SIZES;
}

static inline student *student_open(const void *data, size_t size, const char **error) {
    student_reader r = {data, STUDENT_START, size, NULL};
    student *s = calloc(1, sizeof *s);
    if ((*error = s ? student_read(s, &r) : STUDENT_MEMORY)) student_close(s), s = NULL;
    return s;
}

static inline void student_add(student_ids *t, uint32_t id) { if (t->count < t->most) t->ids[t->count++] = id; }

/* The word ends: the longest token that begins it, then the longest that goes on, and so to its end. */
static inline void student_end_word(student_ids *t) {
    size_t count = t->count, end;
    uint32_t id = t->letters <= (size_t)t->s->longest_word;
    for (size_t start = 0; id && start < t->bytes; start = end) {
        student_string inside = start ? t->s->prefix : (student_string){t->word, 0, 0};
        for (id = 0, end = t->bytes; end > start && !id; end -= !id) id = *student_slot(t->s, inside, t->word + start, end - start);
        if (id) student_add(t, id - 1);
    }
    if (!id) t->count = count, student_add(t, (uint32_t)t->s->unknown);
    t->bytes = t->letters = 0;
}

/* The index of the run that holds a character; -1 where it stays. */
static inline int32_t student_run(const student *s, int32_t code) {
    int32_t low = 0, high = s->runs;
    while (low < high) {
        int32_t middle = (low + high) / 2, is_below = student_i32(s->run, 3 * middle) <= code;
        low = is_below ? middle + 1 : low, high = is_below ? high : middle;
    }
    return low && code <= student_i32(s->run, 3 * low - 2) ? low - 1 : -1;
}

/* A letter as it stands in a text: a part of words, or what separates them. */
static inline void student_letter(student_ids *t, int32_t code) {
    int32_t run = student_run(t->s, code), to = run < 0 ? -1 : student_i32(t->s->run, 3 * run + 2);
    int32_t more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    if (to == STUDENT_SPACE || to == STUDENT_ALONE) student_end_word(t);
    if (to == STUDENT_REMOVED || to == STUDENT_SPACE || ++t->letters > (size_t)t->s->longest_word) return;
    t->word[t->bytes++] = (uint8_t)(more ? (0xFF << (7 - more) & 0xFF) | code >> 6 * more : code);
    while (more--) t->word[t->bytes++] = (uint8_t)(0x80 | (code >> 6 * more & 0x3F));
    if (to == STUDENT_ALONE) student_end_word(t);
}

static inline void student_letters(student_ids *t, int32_t code) {
    int32_t run = student_run(t->s, code), first = run < 0 ? code : student_i32(t->s->run, 3 * run), syllable = code - 0xAC00;
    int32_t to = run < 0 ? -1 : student_i32(t->s->run, 3 * run + 2), several = run < 0 ? 0 : to >> STUDENT_SEQUENCE;
    if (to == STUDENT_HANGUL) student_letter(t, 0x1100 + syllable / 588), student_letter(t, 0x1161 + syllable % 588 / 28);
    if (to == STUDENT_HANGUL && syllable % 28) student_letter(t, 0x11A7 + syllable % 28);
    if (to != STUDENT_HANGUL && !several) student_letter(t, to > STUDENT_HANGUL ? to + code - first : code);
    for (int32_t at = 0; at < several; at++) student_letter(t, student_i32(t->s->letter, (to & STUDENT_PLACE) + at));
}

/* The token ids of a text, with its role's prompt and special tokens, into max_tokens places. Returns NULL, or what is wrong. */
static inline const char *student_tokenize(const student *s, const char *text, size_t size, int role, uint32_t *ids, size_t *count) {
    if (role < 0 || role >= STUDENT_ROLES) return "role: not one of STUDENT_TEXT, STUDENT_QUERY, STUDENT_DOCUMENT";
    if (!student_is_utf8((const uint8_t *)text, size)) return "text: not UTF-8; decode it again";
    student_ids t = {s, ids, 0, (size_t)(s->max_tokens - s->after), 0, 0, {0}};
    for (int32_t at = 0; at < s->before; at++) student_add(&t, student_u32(s->around + 4 * at));
    size_t all = s->prompt[role].size + size;
    uint8_t *whole = all < size ? NULL : malloc(all + 1);
    if (!whole) return STUDENT_MEMORY;
    memcpy(whole, s->prompt[role].text, s->prompt[role].size), memcpy(whole + s->prompt[role].size, size ? text : "", size);
    for (size_t at = 0; at < all && t.count < t.most;) {
        const student_string *token = s->add, *end = s->add + s->added; /* the longest come first */
        while (token < end && (token->size > all - at || memcmp(token->text, whole + at, token->size))) token++;
        if (token == end) student_letters(&t, student_character(whole, all, &at));
        else student_end_word(&t), student_add(&t, token->number), at += token->size;
    }
    student_end_word(&t);
    free(whole), t.most = (size_t)s->max_tokens;
    for (int32_t at = s->before; at < s->before + s->after; at++) student_add(&t, student_u32(s->around + 4 * at));
    *count = t.count;
    return t.count ? NULL : "text: has no tokens; leave it out";
}

/* Component j of a matrix' row, or of the one that a token's PQ codes select: j is of block j mod codes. */
static inline double student_value(const student_matrix *m, size_t at, int32_t j) {
    if (!m->rows) return 0;
    size_t row = m->codes ? m->code[at * (size_t)m->codes + (size_t)(j % m->codes)] : at;
    const uint8_t *values = m->values + row * (size_t)m->bytes, *scales = m->scales + 2 * row * (size_t)m->groups;
    return (m->bits == 8 ? values[j] - 128 : (values[j / 2] >> 4 * (j % 2) & 15) - 8) * m->factor * student_half(scales + 2 * (j / m->group));
}

/* The embedding of a text, in UTF-8, into dims places. Returns NULL, or what is wrong. */
static inline const char *student_encode(const student *s, const char *text, size_t size, int role, float *embedding) {
    size_t width = (size_t)s->width, dims = (size_t)s->dims, count = 0;
    uint32_t *ids = malloc((size_t)s->max_tokens * sizeof *ids);
    double *sum = calloc(width + dims, sizeof *sum), *found = s->head.rows ? sum + width : sum, square = 0;
    const char *error = ids && sum ? student_tokenize(s, text, size, role, ids, &count) : STUDENT_MEMORY;
    for (size_t at = 0; !error && at < count; at++) {
        double weight = (s->table.codes ? student_half(s->weights + 2 * (size_t)ids[at]) : 1) / (double)count;
        for (int32_t j = 0; j < s->width; j++) sum[j] += weight * student_value(&s->table, ids[at], j);
    }
    for (size_t at = 0; !error && at < dims; at++) {
        for (int32_t j = 0; found != sum && j < s->width; j++) found[at] += student_value(&s->head, at, j) * sum[j];
        if (s->biases) found[at] += student_float(student_u32(s->bias + 4 * at));
        if (s->tanh) found[at] = tanh(found[at]);
        square += found[at] * found[at];
    }
    if (!error && !(square <= 1e300)) error = "damaged: an embedding that is not finite" STUDENT_ENDS;
    for (size_t at = 0; !error && at < dims; at++) embedding[at] = (float)(found[at] / fmax(sqrt(square), 1e-12));
    free(ids), free(sum);
    return error;
}

/* The lowest cosine of a golden text's embedding to the stored one, which lies behind the text. */
static inline const char *student_check(const student *s, double *worst) {
    float *embedding = malloc((size_t)s->dims * sizeof *embedding);
    const char *error = embedding ? NULL : STUDENT_MEMORY;
    *worst = 1;
    for (int32_t at = 0; !error && at < s->golden; at++) {
        const student_string *gold = s->add + s->added + at;
        double product = 0, square = 0;
        error = student_encode(s, (const char *)gold->text, gold->size, (int)gold->number, embedding);
        for (int32_t j = 0; !error && j < s->dims; j++) {
            double stored = student_half(gold->text + gold->size + 2 * (size_t)j);
            product += stored * embedding[j], square += stored * stored;
        }
        *worst = fmin(*worst, product / fmax(sqrt(square), 1e-12));
    }
    free(embedding);
    return error;
}

#endif
