/*
 * See edgedistill.h. In the order of a text's way: types; the passes, that is the layers (at the end of this file, which
 * includes itself) once for each instruction set; text -> code points -> tokens; the file -> a student; the calls.
 *
 * Sizes are padded: rows of floats to 16, rows of bytes to 16, texts to 4 tokens. What is padded is zero, so that no loop
 * has a tail. A file is another's: each index in it is checked when it is opened, none when it is used.
 */
#ifndef ED_PASS
#include "edgedistill.h"
#ifndef ED_FREESTANDING /* wasm.c has its own */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "a student's file is little-endian, as this processor is not"
#endif

#define ED_PAD(n) (((size_t)(n) + 15) & ~(size_t)15)
#define ED_AGAIN "; get the file again, or export it again"
#define ED_DAMAGED "damaged: its parts do not fit together" ED_AGAIN
#define ED_MEMORY "not enough memory"
#define ED_NEW(type, count) ((type *)ed_new((size_t)(count), sizeof(type)))

enum { ED_START = 16, ED_LONGEST_WORD = 1000, ED_LAST = 0x10FFFF, ED_WIDEST = 1 << 16, ED_LONGEST_SUM = 1 << 14, ED_MOST = 1 << 24 };
enum { ED_STATIC, ED_BERT, ED_BILSTM };
enum { ED_WORDPIECE, ED_UNIGRAM };
enum { ED_GELU, ED_GELU_TANH, ED_RELU, ED_TANH, ED_SIGMOID, ED_LINEAR };
enum { ED_MEAN, ED_CLS, ED_MAX, ED_LAST_TOKEN, ED_MEAN_SQRT, ED_WEIGHTED_MEAN };
enum { ED_FLOATS, ED_BYTES, ED_NIBBLES, ED_PRODUCT, ED_PACKED }; /* how a matrix is stored */
enum { ED_FIXED = -1, ED_SIGNED = 128 };                         /* how a product's input is; else the byte that stands for 0 */

typedef struct { const uint8_t *data; uint32_t count, each; } ed_array;

/* rows × cols. Floats; or bytes or nibbles around 0 with a scale for each `group` of a row; or, of an ED_PRODUCT, bytes in
   blocks of 16 rows: for each 4 columns, 4 bytes of each row. `sums` are the rows' sums, which make up for zero points.
   An ED_PACKED becomes an ED_PRODUCT when it is opened. */
typedef struct {
    int32_t kind, rows, cols, group, zero;
    float step; /* of an input with fixed scales, whose columns are multiplied with `factors` first */
    const uint8_t *values;
    const float *scales, *factors, *bias;
    const int32_t *sums;
} ed_matrix;

/* The rows of all tokens: as they are, or selected by PQ codes, component j from block j mod blocks. */
typedef struct { ed_matrix rows; const uint8_t *codes; uint32_t blocks, centroids, each; } ed_table;
typedef struct { const float *scale, *shift; } ed_norm;
typedef struct { ed_matrix qkv, out, up, down; ed_norm middle, last; } ed_layer;
typedef struct { ed_matrix in, again; } ed_direction; /* of an LSTM: gates i, o, f, c from the input, from the state */
typedef struct { ed_matrix matrix; int32_t activation, from_unit; } ed_dense;
typedef struct { const uint8_t *text; uint32_t size; } ed_string;

/* The numbers that stand at the beginning of a file. */
typedef struct {
    int32_t length, kind, model, tokens, width, layers, times, heads, inner, activation, positions, first_position;
    int32_t max_tokens, pooling, denses, lexical_at, reserved, size, cuts, labels, unknown, longest_word, composes;
    float int8_range, epsilon, least;
} ed_header;

typedef int (*ed_encoder)(const ed_student *s, const uint32_t *ids, size_t count, float *out); /* 0 without memory */

struct ed_student {
    ed_header h;
    ed_array before, after, ids, added, runs, letters, scores, units, replaced, classes, parts, composed, marks, cut;
    ed_array golden_roles, golden_counts, golden_ids, golden_rows;
    ed_string about, prompt[ED_ROLES], prefix, *token, *add, *label, *gold;
    uint32_t first[257], inside, inside_end;
    double unknown_score;
    ed_table table, positions, lexical_rows;
    ed_matrix projection, lexical; /* projection: of a factorized table, whose rows are narrow */
    const float *weights, *lexical_weights, *again, *mean; /* mean: of embeddings, which bits are less; NULL: none */
    ed_norm norm;
    ed_layer *layer;
    ed_direction *direction;
    ed_dense *dense;
    size_t widest; /* padded columns of any product */
    void **kept;   /* memory that ed_close gives back: in front of each the one before */
    ed_encoder encode;
};

/* Scratch memory of a call: what is taken from `at`, and what every product needs. */
typedef struct { float *at, *panel, *scales; uint8_t *bytes; } ed_work;

static void *ed_new(size_t count, size_t each) { return count > SIZE_MAX / each ? NULL : malloc(count * each); }
static uint32_t ed_u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static int32_t ed_i32(const uint8_t *p) { int32_t v; memcpy(&v, p, 4); return v; }
static uint32_t ed_at(const ed_array *a, size_t i) { /* an array's number of 1, 2 or 4 bytes */
    const uint8_t *p = a->data + i * a->each;
    return a->each == 4 ? ed_u32(p) : a->each == 2 ? (uint32_t)(p[0] | p[1] << 8) : p[0];
}

static float ed_half(uint32_t half) {
    uint32_t bits = (half & 0x7FFF) << 13;
    float value;
    memcpy(&value, &bits, 4); /* 2^112 times too small */
    return value * (half & 0x8000 ? -5192296858534827628530496329220096.f : 5192296858534827628530496329220096.f);
}

/* Value j of a row that is not an ED_PRODUCT's. */
static float ed_value(const ed_matrix *m, size_t row, size_t j) {
    size_t cols = (size_t)m->cols, groups = (cols - 1) / (size_t)m->group + 1;
    if (m->kind == ED_FLOATS) return ((const float *)m->values)[row * cols + j];
    if (m->kind == ED_BYTES) return ((const int8_t *)m->values)[row * cols + j] * m->scales[row * groups + j / (size_t)m->group];
    return ((m->values[row * ((cols + 1) / 2) + j / 2] >> 4 * (j % 2) & 15) - 8) * m->scales[row * groups + j / (size_t)m->group];
}

/* Add a token's row, times a weight, to `row`. */
static void ed_row(const ed_table *t, size_t id, float weight, float *row) {
    size_t cols = (size_t)t->rows.cols;
    if (!t->codes) {
        for (size_t j = 0; j < cols; j++) row[j] += weight * ed_value(&t->rows, id, j);
        return;
    }
    size_t part = cols / t->centroids; /* a block's row has all its centroids */
    for (size_t b = 0; b < t->blocks; b++) {
        const uint8_t *code = t->codes + (id * t->blocks + b) * t->each;
        size_t from = (t->each == 1 ? code[0] : (size_t)(code[0] | code[1] << 8)) * part;
        if (t->rows.kind == ED_BYTES) {
            float scale = weight * t->rows.scales[b];
            const int8_t *values = (const int8_t *)t->rows.values + b * cols + from;
            for (size_t j = 0; j < part; j++) row[j * t->blocks + b] += scale * values[j];
        } else {
            for (size_t j = 0; j < part; j++) row[j * t->blocks + b] += weight * ed_value(&t->rows, b, from + j);
        }
    }
}

/* The dimensions of a table's rows. */
static size_t ed_row_size(const ed_table *t) {
    return t->codes ? (size_t)t->rows.cols / t->centroids * t->blocks : (size_t)t->rows.cols;
}

static float *ed_take(ed_work *w, size_t floats) { return w->at += ED_PAD(floats), w->at - ED_PAD(floats); }

/* Scale to unit length, at least 1e-12; returns the length. */
static float ed_unit(float *row, size_t size) {
    double square = 0;
    for (size_t j = 0; j < size; j++) square += (double)row[j] * row[j];
    double length = sqrt(square) > 1e-12 ? sqrt(square) : 1e-12;
    for (size_t j = 0; j < size; j++) row[j] = (float)(row[j] / length);
    return (float)length;
}

/* ---- passes ---- */

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__) && defined(__SSE2__)
#include <cpuid.h>
#include <immintrin.h>
#define ED_X86 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

/* what multiplies bytes: see ED_(dot) */
#define ED_SCALAR 0
#define ED_128_BITS 1
#define ED_AVX2 2
#define ED_AVXVNNI 3
#define ED_AVX512VNNI 4
#define ED_NEON 5
#define ED_DOTPROD 6
#define ED_RELAXED 7
#define ED_JOIN_(a, b) ed_##a##_##b
#define ED_JOIN(a, b) ED_JOIN_(a, b)
#define ED_(name) ED_JOIN(name, ED_PASS)

#ifdef ED_X86
#define ED_PASS sse2
#define ED_KERNEL ED_128_BITS
#include "edgedistill.c"
#define ED_PASS avx2
#define ED_KERNEL ED_AVX2
#define ED_TARGET __attribute__((target("avx2,fma")))
#include "edgedistill.c"
#if __GNUC__ >= 11 || __clang_major__ >= 12
#define ED_HAS_VNNI 1
#define ED_PASS avxvnni
#define ED_KERNEL ED_AVXVNNI
#define ED_TARGET __attribute__((target("avx2,fma,avxvnni")))
#include "edgedistill.c"
#define ED_PASS avx512vnni
#define ED_KERNEL ED_AVX512VNNI
#define ED_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#include "edgedistill.c"
#endif
#elif defined(__aarch64__)
#define ED_PASS neon
#define ED_KERNEL ED_NEON
#include "edgedistill.c"
#if defined(__ARM_FEATURE_DOTPROD) || defined(__linux__)
#define ED_PASS dotprod
#define ED_KERNEL ED_DOTPROD
#ifndef __ARM_FEATURE_DOTPROD
#include <sys/auxv.h>
#define ED_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#include "edgedistill.c"
#endif
#elif defined(__wasm_simd128__)
#ifdef __wasm_relaxed_simd__
/* bytes of w, signed, times bytes of a, added to s in fours; whether a byte of a above 127 is negative is the engine's choice */
#define ED_RELAXED_DOT(s, w, a) ((v128_t)__builtin_wasm_relaxed_dot_i8x16_i7x16_add_s_i32x4((ed_i8x16)(w), (ed_i8x16)(a), (ed_i32x4)(s)))
typedef signed char ed_i8x16 __attribute__((vector_size(16)));
typedef int ed_i32x4 __attribute__((vector_size(16)));
static int32_t ed_signed(void) { return wasm_i32x4_extract_lane(ED_RELAXED_DOT(wasm_i32x4_splat(0), wasm_i8x16_splat(-1), wasm_i8x16_splat(-128)), 0) / 512; } /* 1, or −1 */
#define ED_PASS relaxed
#define ED_KERNEL ED_RELAXED
#else
#define ED_PASS simd128
#define ED_KERNEL ED_128_BITS
#endif
#include "edgedistill.c"
#else
#define ED_PASS scalar
#define ED_KERNEL ED_SCALAR
#include "edgedistill.c"
#endif

static ed_encoder ed_pass(const char **name) {
#ifdef ED_X86
#ifdef ED_HAS_VNNI
    unsigned a = 0, b = 0, c = 0, d = 0;
    int wide = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
    if (wide && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) return *name = "avx512vnni", ed_encode_avx512vnni;
    if (__builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 16) return *name = "avxvnni", ed_encode_avxvnni;
#endif
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return *name = "avx2", ed_encode_avx2;
    return *name = "sse2", ed_encode_sse2;
#elif defined(__aarch64__)
#if defined(__ARM_FEATURE_DOTPROD)
    return *name = "dotprod", ed_encode_dotprod;
#elif defined(__linux__)
    if (getauxval(AT_HWCAP) & 1ul << 20) return *name = "dotprod", ed_encode_dotprod;
#endif
    return *name = "neon", ed_encode_neon;
#elif defined(__wasm_relaxed_simd__)
    return *name = "relaxed", ed_encode_relaxed;
#elif defined(__wasm_simd128__)
    return *name = "simd128", ed_encode_simd128;
#else
    return *name = "scalar", ed_encode_scalar;
#endif
}

const char *ed_instructions(void) {
    const char *name;
    ed_pass(&name);
    return name;
}

/* ---- text -> code points ---- */

/* The character that starts at *at, which moves behind it; -1 where there is none in UTF-8. */
static int32_t ed_character(const uint8_t *text, size_t size, size_t *at) {
    static const int32_t least[] = {0, 0x80, 0x800, 0x10000};
    int32_t code = text[(*at)++], more = code < 0x80 ? 0 : code < 0xC2 ? -1 : code < 0xE0 ? 1 : code < 0xF0 ? 2 : code < 0xF5 ? 3 : -1;
    if (more > 0) code &= 0x3F >> more;
    for (int32_t left = more; left > 0; left--) {
        if (*at == size || (text[*at] & 0xC0) != 0x80) return -1;
        code = code << 6 | (text[(*at)++] & 0x3F);
    }
    return more < 0 || code < least[more] || code > ED_LAST || (code >= 0xD800 && code < 0xE000) ? -1 : code;
}

static int ed_is_utf8(const uint8_t *text, size_t size) {
    for (size_t at = 0; at < size;) if (ed_character(text, size, &at) < 0) return 0;
    return 1;
}

static size_t ed_utf8(int32_t code, uint8_t *out) {
    size_t more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    out[0] = (uint8_t)(more ? (0xFF << (7 - more) & 0xFF) | code >> 6 * more : code);
    for (size_t at = 1; at <= more; at++) out[at] = (uint8_t)(0x80 | (code >> 6 * (more - at) & 0x3F));
    return more + 1;
}

/* Of rows in the order of their first two numbers, the last one that is not behind a pair; NULL where all are. */
static const uint8_t *ed_last(const ed_array *rows, int32_t first, int32_t second) {
    size_t low = 0, high = rows->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const uint8_t *row = rows->data + rows->each * middle;
        int32_t a = ed_i32(row);
        if (a < first || (a == first && ed_i32(row + 4) <= second)) low = middle + 1;
        else high = middle;
    }
    return low ? rows->data + rows->each * (low - 1) : NULL;
}

/* The row (first, last, value) of a table of ranges that holds a code point; NULL where none does. */
static const uint8_t *ed_run(const ed_array *runs, int32_t code) {
    const uint8_t *run = ed_last(runs, code, INT32_MAX);
    return run && code <= ed_i32(run + 4) ? run : NULL;
}

static int32_t ed_class(const ed_array *runs, int32_t code) {
    const uint8_t *run = code < 0x80 && runs->count && code < ed_i32(runs->data) ? NULL : ed_run(runs, code);
    return run ? ed_i32(run + 8) : 0;
}

typedef struct { double score; uint32_t from, by, found; } ed_way; /* of Unigram: the best to a byte, from which byte by which token; a token found */
typedef struct {
    const ed_student *s;
    uint32_t *ids;
    size_t count, most;
    uint8_t *word; /* of WordPiece up to its longest word, of Unigram as long as it is */
    size_t bytes, room, letters;
    int32_t *codes; /* a stretch of text, being normalized */
    size_t codes_room;
    ed_way *way;
    size_t ways;
    int failed;
} ed_tokens;

/* Room for `size` items of `each` bytes, doubled; 0 without memory. */
static int ed_grow(ed_tokens *t, void **items, size_t *room, size_t size, size_t each) {
    if (size <= *room) return 1;
    size_t wanted = size < 256 ? 512 : 2 * size;
    void *more = wanted < size || wanted > SIZE_MAX / each ? NULL : malloc(wanted * each);
    if (!more) return t->failed = 1, 0;
    if (*items) memcpy(more, *items, *room * each);
    free(*items), *items = more, *room = wanted;
    return 1;
}

static void ed_add(ed_tokens *t, uint32_t id) { if (t->count < t->most) t->ids[t->count++] = id; }

/* Of the tokens from low to high, which are in the order of their bytes and begin alike: the first that goes on with `byte` or more. */
static uint32_t ed_bound(const ed_student *s, uint32_t low, uint32_t high, size_t depth, int byte) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const ed_string *token = s->token + middle;
        if (token->size <= depth || token->text[depth] < byte) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void ed_narrow(const ed_student *s, uint32_t *low, uint32_t *high, size_t depth, uint8_t byte) {
    *low = ed_bound(s, *low, *high, depth, byte), *high = ed_bound(s, *low, *high, depth, byte + 1);
}

static void ed_begin(const ed_student *s, uint8_t byte, uint32_t *low, uint32_t *high) { *low = s->first[byte], *high = s->first[byte + 1]; }

/* ---- WordPiece ---- */

/* The word ends: the longest token that begins it, then the longest that goes on, and so to its end. */
static void ed_end_word(ed_tokens *t) {
    const ed_student *s = t->s;
    size_t count = t->count, end = 0;
    int known = t->letters <= (size_t)s->h.longest_word;
    for (size_t start = 0; known && start < t->bytes; start = end) {
        size_t depth = start ? s->prefix.size : 0;
        uint32_t low = s->inside, high = s->inside_end, best = 0;
        known = 0;
        for (size_t at = start; at < t->bytes; at++, depth++) {
            if (depth) ed_narrow(s, &low, &high, depth, t->word[at]);
            else ed_begin(s, t->word[at], &low, &high);
            if (low == high) break;
            if (s->token[low].size == depth + 1) best = low, end = at + 1, known = 1;
        }
        if (known) ed_add(t, ed_at(&s->ids, best));
    }
    if (!known && t->letters) t->count = count, ed_add(t, (uint32_t)s->h.unknown);
    t->bytes = t->letters = 0;
}

/* What a run of characters becomes: nothing, a space, a word of its own, Hangul's letters; or from ED_OTHER the first one's
   letter; or a place in `letters` where above 21 bits stands how many. */
enum { ED_REMOVED, ED_SPACE, ED_ALONE, ED_HANGUL, ED_SEQUENCE = 21, ED_PLACE = (1 << 21) - 1 };

static void ed_letter(ed_tokens *t, int32_t code) {
    const uint8_t *run = ed_run(&t->s->runs, code);
    int32_t to = run ? ed_i32(run + 8) : -1;
    if (to == ED_SPACE || to == ED_ALONE) ed_end_word(t);
    if (to == ED_REMOVED || to == ED_SPACE || ++t->letters > (size_t)t->s->h.longest_word) return;
    t->bytes += ed_utf8(code, t->word + t->bytes);
    if (to == ED_ALONE) ed_end_word(t);
}

static void ed_wordpiece(ed_tokens *t, int32_t code) {
    const uint8_t *run = ed_run(&t->s->runs, code);
    int32_t to = run ? ed_i32(run + 8) : -1, several = run ? to >> ED_SEQUENCE : 0, syllable = code - 0xAC00;
    if (to == ED_HANGUL) {
        ed_letter(t, 0x1100 + syllable / 588), ed_letter(t, 0x1161 + syllable % 588 / 28);
        if (syllable % 28) ed_letter(t, 0x11A7 + syllable % 28);
    } else if (!several) {
        ed_letter(t, to > ED_HANGUL ? to + code - ed_i32(run) : code);
    }
    for (int32_t at = 0; at < several; at++) ed_letter(t, (int32_t)ed_at(&t->s->letters, (size_t)((to & ED_PLACE) + at)));
}

/* ---- Unigram: NFC, SentencePiece's table, words at white space, the most probable tokens ---- */

/* The canonical decomposition of a code point, behind `count` others: 1 to 4. `parts` are (character, its 1 to 4 parts, 0). */
static size_t ed_decompose(const ed_student *s, int32_t code, int32_t *codes, size_t count) {
    const uint8_t *row = code < 0xC0 ? NULL : ed_last(&s->parts, code, INT32_MAX);
    if (!row || ed_i32(row) != code) return codes[count] = code, count + 1;
    for (size_t at = 1; at < 5 && ed_i32(row + 4 * at); at++) codes[count++] = ed_i32(row + 4 * at);
    return count;
}

/* What two code points compose to, 0 where they do not. `composed` are (first, second, both). */
static int32_t ed_composed(const ed_student *s, int32_t first, int32_t second) {
    if (first >= 0x1100 && first < 0x1113 && second >= 0x1161 && second < 0x1176) return 0xAC00 + ((first - 0x1100) * 21 + second - 0x1161) * 28;
    if (first >= 0xAC00 && first < 0xD7A4 && (first - 0xAC00) % 28 == 0 && second > 0x11A7 && second < 0x11C3) return first + second - 0x11A7;
    const uint8_t *pair = ed_last(&s->composed, first, second);
    return pair && ed_i32(pair) == first && ed_i32(pair + 4) == second ? ed_i32(pair + 8) : 0;
}

/* Normalization form C in place: marks in the order of their classes, then composed with the last character of class 0. */
static size_t ed_compose(const ed_student *s, int32_t *codes, size_t count) {
    for (size_t at = 1; at < count; at++) {
        int32_t code = codes[at], class_ = ed_class(&s->marks, code);
        size_t to = at;
        for (; class_ && to && ed_class(&s->marks, codes[to - 1]) > class_; to--) codes[to] = codes[to - 1];
        codes[to] = code;
    }
    size_t kept = 0, starter = count;
    int32_t past = 0;
    for (size_t at = 0; at < count; at++) {
        int32_t class_ = ed_class(&s->marks, codes[at]);
        int32_t found = starter < kept && (starter + 1 == kept || (past && past < class_)) ? ed_composed(s, codes[starter], codes[at]) : 0;
        if (!found && !class_) starter = kept;
        if (found) codes[starter] = found;
        else past = class_, codes[kept++] = codes[at];
    }
    return kept;
}

/* What the shortest prefix of some bytes in SentencePiece's table stands for: a double array over UTF-8. NULL: none. */
static const uint8_t *ed_replacement(const ed_student *s, const uint8_t *bytes, size_t size) {
    uint32_t unit = s->units.count ? ed_at(&s->units, 0) : 0, at = (unit >> 10) << ((unit & 512) >> 6);
    for (size_t i = 0; i < size && bytes[i]; i++) {
        at ^= bytes[i];
        if (at >= s->units.count) return NULL;
        unit = ed_at(&s->units, at);
        if ((unit & 0x800000FF) != bytes[i]) return NULL;
        at ^= (unit >> 10) << ((unit & 512) >> 6);
        if (at >= s->units.count) return NULL;
        if (unit >> 8 & 1) {
            uint32_t place = ed_at(&s->units, at) & 0x7FFFFFFF;
            return place < s->replaced.count ? s->replaced.data + place : NULL; /* its last byte is 0 */
        }
    }
    return NULL;
}

static double ed_score(const ed_student *s, uint32_t token) {
    double score;
    float single;
    if (s->scores.each == 8) return memcpy(&score, s->scores.data + 8 * (size_t)token, 8), score;
    return memcpy(&single, s->scores.data + 4 * (size_t)token, 4), (double)single;
}

/* A piece ends: the tokens with the highest sum of scores; characters of no token in a row are one unknown token. */
static void ed_end_piece(ed_tokens *t) {
    const ed_student *s = t->s;
    size_t size = t->bytes, count = 0;
    t->bytes = 0;
    if (!size || t->failed || t->count == t->most) return;
    if (!ed_grow(t, (void **)&t->way, &t->ways, size + 1, sizeof *t->way)) return;
    const uint32_t none = UINT32_MAX;
    ed_way *way = t->way;
    for (size_t at = 0; at <= size; at++) way[at].by = none;
    way[0].score = 0;
    for (size_t start = 0, next; start < size; start = next) {
        next = start + (t->word[start] < 0x80 ? 1 : t->word[start] < 0xE0 ? 2 : t->word[start] < 0xF0 ? 3 : 4);
        next = next < size ? next : size; /* a file's own replacements may be no UTF-8 */
        uint32_t low = 0, high = 0;
        int single = 0;
        for (size_t at = start; at < size; at++) {
            if (at > start) ed_narrow(s, &low, &high, at - start, t->word[at]);
            else ed_begin(s, t->word[at], &low, &high);
            if (low == high) break;
            if (s->token[low].size != at + 1 - start) continue;
            double score = way[start].score + ed_score(s, low);
            if (way[at + 1].by == none || score > way[at + 1].score) way[at + 1].score = score, way[at + 1].from = (uint32_t)start, way[at + 1].by = low;
            if (at + 1 == next) single = 1;
        }
        double unknown = way[start].score + s->unknown_score;
        if (!single && (way[next].by == none || unknown > way[next].score)) way[next].score = unknown, way[next].from = (uint32_t)start, way[next].by = none - 1;
    }
    for (size_t end = size; end; end = way[end].from) {
        uint32_t id = way[end].by == none - 1 ? (uint32_t)s->h.unknown : ed_at(&s->ids, way[end].by);
        if (!count || id != (uint32_t)s->h.unknown || way[count - 1].found != id) way[count++].found = id;
    }
    while (count) ed_add(t, way[--count].found);
}

static int ed_is_space(int32_t c) {
    if (c < 0x80) return c == 32 || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Bytes of normalized text: what stands between white space are words, which begin with ▁, as do the pieces of a word. */
static void ed_unigram(ed_tokens *t, const uint8_t *bytes, size_t size) {
    static const uint8_t mark[] = {0xE2, 0x96, 0x81}; /* ▁ */
    for (size_t at = 0, from = 0; at < size; from = at) {
        int32_t code = ed_character(bytes, size, &at);
        int space = ed_is_space(code), marked = code == 0x2581;
        if (space || marked) ed_end_piece(t), t->letters = space ? 0 : t->letters;
        if (space || !ed_grow(t, (void **)&t->word, &t->room, t->bytes + 8, 1)) continue;
        if (!t->letters && !marked) memcpy(t->word, mark, 3), t->bytes = 3;
        memcpy(t->word + t->bytes, bytes + from, at - from);
        t->bytes += at - from, t->letters = 1;
    }
}

/* How a character joins its neighbours to one grapheme, as UAX 29 has it, as far as graphemes below 6 bytes depend on it. */
enum { ED_APART, ED_JOINS, ED_JOINED, ED_CONTROL, ED_L, ED_V, ED_T, ED_LV, ED_LVT };

static int32_t ed_grapheme_class(const ed_student *s, int32_t c) {
    if (c < 0x300) return ed_class(&s->classes, c);
    if (c >= 0xAC00 && c < 0xD7A4) return (c - 0xAC00) % 28 ? ED_LVT : ED_LV;
    if ((c >= 0x1100 && c < 0x1160) || (c >= 0xA960 && c < 0xA97D)) return ED_L;
    if ((c >= 0x1160 && c < 0x11A8) || (c >= 0xD7B0 && c < 0xD7C7)) return ED_V;
    if ((c >= 0x11A8 && c < 0x1200) || (c >= 0xD7CB && c < 0xD7FC)) return ED_T;
    return ed_class(&s->classes, c);
}

/* A stretch of text whose neighbours do not matter to it. */
static void ed_stretch(ed_tokens *t, const uint8_t *text, size_t size) {
    const ed_student *s = t->s;
    size_t count = 0;
    if (!ed_grow(t, (void **)&t->codes, &t->codes_room, 2 * size, sizeof *t->codes)) return;
    for (size_t at = 0; at < size;) {
        int32_t code = ed_character(text, size, &at);
        if (s->h.composes) count = ed_decompose(s, code, t->codes, count);
        else t->codes[count++] = code;
    }
    if (s->h.composes) count = ed_compose(s, t->codes, count);
    for (size_t start = 0, end; start < count; start = end) {
        uint8_t bytes[8], one[4];
        size_t length = 0;
        int32_t past = ED_CONTROL, class_ = 0;
        for (end = start; end < count; end++, past = class_) {
            class_ = ed_grapheme_class(s, t->codes[end]);
            int joined = class_ == ED_JOINED || past == ED_JOINS;
            joined |= past == ED_L && (class_ == ED_L || class_ == ED_V || class_ == ED_LV || class_ == ED_LVT);
            joined |= ((past == ED_V || past == ED_LV) && (class_ == ED_V || class_ == ED_T)) || ((past == ED_T || past == ED_LVT) && class_ == ED_T);
            joined &= past != ED_CONTROL && class_ != ED_CONTROL;
            if (end > start && !joined && !(t->codes[end] == '\n' && t->codes[end - 1] == '\r')) break;
            size_t more = ed_utf8(t->codes[end], one);
            if (length + more < sizeof bytes) memcpy(bytes + length, one, more);
            length += more;
        }
        const uint8_t *whole = length < 6 ? ed_replacement(s, bytes, length) : NULL;
        if (whole) ed_unigram(t, whole, strlen((const char *)whole));
        for (size_t at = start; !whole && at < end; at++) {
            size_t more = ed_utf8(t->codes[at], one);
            const uint8_t *found = ed_replacement(s, one, more);
            if (found) ed_unigram(t, found, strlen((const char *)found));
            else ed_unigram(t, one, more);
        }
    }
}

/* Text between added tokens. Two neighbours in ASCII neither compose nor join, but for a carriage return. */
static void ed_plain(ed_tokens *t, const uint8_t *text, size_t size) {
    if (t->s->h.model == ED_WORDPIECE) {
        for (size_t at = 0; at < size && t->count < t->most;) ed_wordpiece(t, ed_character(text, size, &at));
        ed_end_word(t);
        return;
    }
    for (size_t start = 0, end; start < size && t->count < t->most && !t->failed; start = end) {
        end = size - start > 256 ? start + 256 : size;
        while (end < size && (text[end - 1] >= 0x80 || text[end] >= 0x80 || text[end - 1] == '\r')) end++;
        ed_stretch(t, text + start, end - start);
    }
    ed_end_piece(t), t->letters = 0;
}

/* The added token that stands at a place of a text, the longest first; NULL: none. */
static const ed_string *ed_added(const ed_student *s, const uint8_t *text, size_t size) {
    for (const ed_string *token = s->add, *end = s->add + s->added.count; token < end; token++)
        if (token->text[0] == *text && token->size <= size && !memcmp(token->text, text, token->size)) return token;
    return NULL;
}

static void ed_text(ed_tokens *t, const uint8_t *text, size_t size) {
    size_t from = 0;
    for (size_t at = 0, next; at < size && t->count < t->most; at = next) {
        const ed_string *token = ed_added(t->s, text + at, size - at);
        next = at + (token ? token->size : 1);
        if (!token) continue;
        ed_plain(t, text + from, at - from);
        ed_add(t, ed_at(&t->s->added, (size_t)(token - t->s->add)));
        from = next;
    }
    if (t->count < t->most) ed_plain(t, text + from, size - from);
}

const char *ed_tokenize(const ed_student *s, const char *text, size_t size, int role, uint32_t *ids, size_t *count) {
    *count = 0;
    if (role < 0 || role >= ED_ROLES) return "role: not one of ED_TEXT, ED_QUERY, ED_DOCUMENT";
    if (!ed_is_utf8((const uint8_t *)text, size)) return "text: not UTF-8; decode it again";
    if (size > UINT32_MAX / 4) return "text: longer than 1 GB; cut it";
    ed_tokens t;
    memset(&t, 0, sizeof t);
    t.s = s, t.ids = ids, t.most = (size_t)s->h.max_tokens - s->after.count;
    for (uint32_t at = 0; at < s->before.count; at++) ed_add(&t, ed_at(&s->before, at));
    size_t all = s->prompt[role].size + size;
    uint8_t *whole = s->prompt[role].size ? ED_NEW(uint8_t, all + 1) : NULL;
    size_t room = s->h.model == ED_WORDPIECE ? 4 * ED_LONGEST_WORD + 4 : 8;
    t.failed = (s->prompt[role].size && !whole) || !ed_grow(&t, (void **)&t.word, &t.room, room, 1);
    if (whole) memcpy(whole, s->prompt[role].text, s->prompt[role].size), memcpy(whole + s->prompt[role].size, size ? text : "", size);
    if (!t.failed) ed_text(&t, whole ? whole : (const uint8_t *)text, all);
    free(whole), free(t.word), free(t.codes), free(t.way);
    if (t.failed) return ED_MEMORY;
    t.most = (size_t)s->h.max_tokens;
    for (uint32_t at = 0; at < s->after.count; at++) ed_add(&t, ed_at(&s->after, at));
    *count = t.count;
    return t.count ? NULL : "text: has no tokens; leave it out";
}

/* ---- a file -> a student ---- */

typedef struct { const uint8_t *data; size_t at, size; const char *error; void **kept; } ed_reader;

/* The CRC-32 of all behind it, 8 bytes at a time. */
static uint32_t ed_checksum(const uint8_t *p, size_t size) {
    static const size_t step = 8;
    uint32_t table[8][256], found = ~(uint32_t)0;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (0xEDB88320 & (0 - (value & 1)));
        table[0][i] = value;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
    for (; size >= step; size -= step, p += step) {
        uint32_t a = found ^ ed_u32(p), b = ed_u32(p + 4);
        found = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^ table[4][a >> 24];
        found ^= table[3][b & 255] ^ table[2][b >> 8 & 255] ^ table[1][b >> 16 & 255] ^ table[0][b >> 24];
    }
    while (size--) found = found >> 8 ^ table[0][(found ^ *p++) & 255];
    return ~found;
}

/* The next array: its count and size of an item, then at a multiple of 64 its items, of at most `most` bytes each. */
static ed_array ed_items(ed_reader *r, uint32_t most) {
    ed_array found = {r->data, 0, 1};
    if (r->error) return found;
    size_t start = (r->at + 8 + 63) & ~(size_t)63;
    uint32_t count = 0, each = 0;
    if (r->at <= r->size && r->size - r->at >= 8) count = ed_u32(r->data + r->at), each = ed_u32(r->data + r->at + 4);
    if (!each || each > most || start > r->size || count > (r->size - start) / each) {
        r->error = ED_DAMAGED;
        return found;
    }
    found.data = r->data + start, found.count = count, found.each = each;
    r->at = (start + (size_t)count * each + 3) & ~(size_t)3;
    return found;
}

/* Memory, of zeros, that stays as long as the student; NULL without. */
static void *ed_keep(ed_reader *r, size_t count, size_t each) {
    void **head = count > (SIZE_MAX - 64) / each ? NULL : (void **)calloc(count * each + 64, 1);
    if (!head) return r->error = ED_MEMORY, (void *)NULL;
    *head = r->kept, r->kept = head;
    return (uint8_t *)head + 64;
}

static void ed_require(ed_reader *r, int holds) { if (!holds && !r->error) r->error = ED_DAMAGED; }

/* An array whose items have `each` bytes; `count` of them, if that is not −1. */
static ed_array ed_exactly(ed_reader *r, int64_t count, uint32_t each) {
    ed_array found = ed_items(r, each);
    ed_require(r, found.each == each && (count < 0 || found.count == count));
    return found;
}

static const float *ed_floats(ed_reader *r, size_t count) { return (const float *)(const void *)ed_exactly(r, (int64_t)ED_PAD(count), 4).data; }

/* Numbers below `limit`. */
static ed_array ed_numbers(ed_reader *r, int64_t count, uint32_t limit) {
    ed_array found = ed_items(r, 4);
    ed_require(r, found.each != 3 && (count < 0 || found.count == count));
    for (size_t at = 0; at < found.count && !r->error; at++) ed_require(r, ed_at(&found, at) < limit);
    return found;
}

/* Ranges (first, last, value) of code points in order, values below `limit`. */
static ed_array ed_runs(ed_reader *r, int32_t limit) {
    ed_array found = ed_exactly(r, -1, 12);
    int32_t past = -1;
    for (size_t at = 0; at < found.count && !r->error; at++) {
        int32_t first = ed_i32(found.data + 12 * at), last = ed_i32(found.data + 12 * at + 4), value = ed_i32(found.data + 12 * at + 8);
        ed_require(r, first > past && last >= first && last <= ED_LAST && value >= 0 && value <= limit);
        past = last;
    }
    return found;
}

/* Texts, behind their sizes in bytes. */
static ed_string *ed_strings(ed_reader *r, int64_t count, uint32_t *found) {
    ed_array sizes = ed_items(r, 4), bytes = ed_exactly(r, -1, 1);
    ed_require(r, sizes.each != 3 && (count < 0 || sizes.count == count));
    ed_string *strings = r->error ? NULL : (ed_string *)ed_keep(r, (size_t)sizes.count + 1, sizeof *strings);
    if (found) *found = sizes.count;
    size_t at = 0;
    for (size_t i = 0; strings && i < sizes.count; i++) {
        size_t size = ed_at(&sizes, i);
        ed_require(r, size <= bytes.count - at);
        strings[i].text = bytes.data + at, strings[i].size = (uint32_t)(r->error ? 0 : size);
        at += strings[i].size;
    }
    return strings;
}

static int ed_between(int32_t value, int32_t least, int32_t most) { return value >= least && value <= most; }

/* The 8 bits of a product whose file has 4, two in a byte, 32 from each other, with scales in float16 of 16 rows for 32 columns: as
   onnxruntime makes them (edgedistill/quantization/w4.py). A row that has another sum than the file says is refused. */
static void ed_unpack(ed_reader *r, ed_matrix *m) {
    static const float ones[4] = {1, 1, 1, 1};
    size_t wide = ED_PAD(m->cols), high = ED_PAD(m->rows), groups = (wide + 31) / 32;
    const uint16_t *half = (const uint16_t *)(const void *)ed_exactly(r, (int64_t)(high * groups), 2).data;
    const uint8_t *from = m->values;
    int8_t *to = r->error ? NULL : (int8_t *)ed_keep(r, high * wide, 1);
    float scale[64], factor[64], value[64];
    m->kind = ED_PRODUCT, m->values = (const uint8_t *)to;
    for (size_t row = 0; row < high && !r->error; row += 16) {
        uint32_t sums[64] = {0}, bits[64];
        for (size_t column = 0; column < wide; column += 4, from += 32, to += 64) {
            for (size_t i = 0; i < 64 && column % 32 == 0; i++) scale[i] = ed_half(half[row * groups + column / 2 + i / 4]);
            for (size_t i = 0; i < 64; i += 4) memcpy(factor + i, m->factors ? m->factors + column : ones, sizeof ones);
            for (size_t i = 0; i < 32; i++) value[i] = (float)((from[i] & 15) - 8), value[i + 32] = (float)((from[i] >> 4) - 8);
            for (size_t i = 0; i < 64; i++) value[i] = value[i] * scale[i] / factor[i] + 12582912.f; /* as ED_(round) */
            memcpy(bits, value, sizeof bits);
            for (size_t i = 0; i < 64; i++) bits[i] -= 0x4B400000, sums[i] += bits[i], to[i] = (int8_t)bits[i];
        }
        for (size_t i = 0; i < 64; i += 4) ed_require(r, sums[i] + sums[i + 1] + sums[i + 2] + sums[i + 3] == (uint32_t)m->sums[row + i / 4]);
    }
}

/* A matrix of so many rows and columns; any where they are −1. */
static ed_matrix ed_read_matrix(ed_reader *r, ed_student *s, int64_t rows, int64_t cols) {
    ed_matrix m = {ED_FLOATS, 1, 1, 1, 0, 1, NULL, NULL, NULL, NULL, NULL};
    ed_array shape = ed_exactly(r, 7, 4);
    if (r->error) return m;
    const uint8_t *n = shape.data;
    int has_bias = ed_i32(n + 20);
    m.kind = ed_i32(n), m.rows = ed_i32(n + 4), m.cols = ed_i32(n + 8), m.group = ed_i32(n + 12), m.zero = ed_i32(n + 16), memcpy(&m.step, n + 24, 4);
    ed_require(r, ed_between(m.kind, ED_FLOATS, ED_PACKED) && ed_between(m.rows, 1, ED_MOST) && ed_between(m.cols, 1, ED_MOST));
    ed_require(r, ed_between(m.group, 1, m.cols) && ed_between(m.zero, ED_FIXED, 255) && (rows < 0 || m.rows == rows) && (cols < 0 || m.cols == cols));
    ed_require(r, m.kind < ED_PRODUCT || (m.rows <= ED_WIDEST && m.cols <= ED_LONGEST_SUM));
    if (r->error) return m;
    size_t groups = ((size_t)m.cols - 1) / (size_t)m.group + 1, high = ED_PAD(m.rows), wide = ED_PAD(m.cols);
    size_t bytes = m.kind == ED_FLOATS ? 4 * (size_t)m.cols : m.kind == ED_BYTES ? (size_t)m.cols : ((size_t)m.cols + 1) / 2;
    ed_array values = ed_items(r, 4);
    uint64_t expected = m.kind < ED_PRODUCT ? (uint64_t)m.rows * bytes : (uint64_t)high * wide / (m.kind == ED_PACKED ? 2 : 1);
    ed_require(r, (uint64_t)values.count * values.each == expected);
    m.values = values.data;
    if (m.kind >= ED_PRODUCT) {
        m.scales = ed_floats(r, high), m.sums = (const int32_t *)(const void *)ed_floats(r, high);
        for (size_t at = 0; at < high && !r->error; at++) ed_require(r, ed_between(m.sums[at], -128 * m.cols, 127 * m.cols));
        if (m.zero == ED_FIXED) m.factors = ed_floats(r, wide);
        if (m.kind == ED_PACKED) ed_unpack(r, &m);
    } else if (m.kind != ED_FLOATS) {
        ed_array found = ed_items(r, 4);
        ed_require(r, (found.each == 2 || found.each == 4) && found.count == (uint64_t)m.rows * groups);
        float *scales = r->error || found.each == 4 ? NULL : (float *)ed_keep(r, found.count, sizeof *scales);
        for (size_t at = 0; scales && at < found.count; at++) scales[at] = ed_half(ed_at(&found, at));
        m.scales = scales ? scales : (const float *)(const void *)found.data;
    }
    if (has_bias) m.bias = ed_floats(r, high);
    if (wide > s->widest && !r->error) s->widest = wide;
    return m;
}

static ed_table ed_read_table(ed_reader *r, ed_student *s) {
    ed_table t;
    ed_array about = ed_exactly(r, 2, 4); /* blocks, 0 of rows that are no codes; centroids of a block */
    memset(&t, 0, sizeof t);
    t.blocks = ed_at(&about, 0), t.centroids = ed_at(&about, r->error ? 0 : 1);
    ed_require(r, t.blocks <= ED_WIDEST && t.centroids <= ED_WIDEST && (!t.blocks || t.centroids));
    t.rows = ed_read_matrix(r, s, !r->error && t.blocks ? (int64_t)t.blocks : s->h.tokens, -1);
    ed_require(r, t.rows.kind != ED_PRODUCT);
    if (r->error || !t.blocks) return t;
    ed_array codes = ed_numbers(r, (int64_t)s->h.tokens * t.blocks, t.centroids);
    ed_require(r, codes.each <= 2 && (uint32_t)t.rows.cols % t.centroids == 0 && t.rows.group == t.rows.cols);
    ed_require(r, (uint64_t)t.rows.cols / t.centroids * t.blocks <= ED_WIDEST);
    t.codes = codes.data, t.each = codes.each;
    return t;
}

static ed_norm ed_read_norm(ed_reader *r, size_t size) {
    ed_norm norm = {ed_floats(r, size), NULL};
    norm.shift = ed_floats(r, size);
    return norm;
}

static void ed_read_tokenizer(ed_reader *r, ed_student *s) {
    ed_header *h = &s->h;
    s->before = ed_numbers(r, -1, (uint32_t)h->tokens), s->after = ed_numbers(r, -1, (uint32_t)h->tokens);
    ed_require(r, (uint64_t)s->before.count + s->after.count < (uint64_t)h->max_tokens);
    for (int role = 0; role < ED_ROLES; role++) {
        ed_array prompt = ed_exactly(r, -1, 1);
        s->prompt[role].text = prompt.data, s->prompt[role].size = prompt.count;
        ed_require(r, ed_is_utf8(prompt.data, prompt.count));
    }
    s->token = ed_strings(r, h->tokens, NULL), s->ids = ed_numbers(r, h->tokens, (uint32_t)h->tokens);
    uint32_t count = 0;
    s->add = ed_strings(r, -1, &count), s->added = ed_numbers(r, count, (uint32_t)h->tokens);
    for (uint32_t at = 0; at < count && !r->error; at++) ed_require(r, s->add[at].size > 0);
    ed_array prefix = ed_exactly(r, -1, 1);
    s->prefix.text = prefix.data, s->prefix.size = prefix.count;
    s->runs = ed_runs(r, INT32_MAX), s->letters = ed_numbers(r, -1, ED_LAST + 1);
    for (uint32_t at = 0; at < s->runs.count && !r->error; at++) {
        int32_t first = ed_i32(s->runs.data + 12 * at), last = ed_i32(s->runs.data + 12 * at + 4), to = ed_i32(s->runs.data + 12 * at + 8);
        int32_t several = to >> ED_SEQUENCE;
        ed_require(r, to != ED_HANGUL || (first >= 0xAC00 && last <= 0xD7A3));
        ed_require(r, several ? (uint32_t)((to & ED_PLACE) + several) <= s->letters.count : to + last - first <= ED_LAST);
    }
    s->scores = ed_items(r, 8);
    ed_require(r, h->model == ED_WORDPIECE || (s->scores.count == (uint32_t)h->tokens && (s->scores.each == 4 || s->scores.each == 8)));
    s->units = ed_exactly(r, -1, 4), s->replaced = ed_exactly(r, -1, 1);
    ed_require(r, !s->replaced.count || !s->replaced.data[s->replaced.count - 1]);
    s->classes = ed_runs(r, ED_LVT), s->marks = ed_runs(r, 255);
    s->parts = ed_exactly(r, -1, 20), s->composed = ed_exactly(r, -1, 12);
    for (uint32_t at = 0; at < s->parts.count && !r->error; at++)
        for (size_t i = 0; i < 5; i++) ed_require(r, ed_between(ed_i32(s->parts.data + 20 * at + 4 * i), 0, ED_LAST));
    for (uint32_t at = 0; at < s->composed.count && !r->error; at++) ed_require(r, ed_between(ed_i32(s->composed.data + 12 * at + 8), 0, ED_LAST));
    if (r->error) return;
    uint32_t at = 0;
    for (int byte = 0; byte <= 256; byte++) {
        while (at < (uint32_t)h->tokens && (!s->token[at].size || s->token[at].text[0] < byte)) at++;
        s->first[byte] = at;
    }
    s->inside = 0, s->inside_end = (uint32_t)h->tokens;
    for (uint32_t i = 0; i < s->prefix.size; i++) ed_narrow(s, &s->inside, &s->inside_end, i, s->prefix.text[i]);
    double least = 0;
    for (uint32_t i = 0; i < s->scores.count; i++) least = i ? fmin(least, ed_score(s, i)) : ed_score(s, 0);
    s->unknown_score = least - 10;
}

/* What reads token embeddings `width` wide: returns how wide what is pooled is. */
static size_t ed_read_layers(ed_reader *r, ed_student *s, size_t width) {
    ed_header *h = &s->h;
    size_t inner = (size_t)h->inner;
    if (h->kind == ED_STATIC) return width;
    if (h->kind == ED_BILSTM) {
        s->direction = (ed_direction *)ed_keep(r, (size_t)h->layers * 2, sizeof *s->direction);
        for (int32_t at = 0; at < 2 * h->layers && !r->error; at++) {
            s->direction[at].in = ed_read_matrix(r, s, 4 * (int64_t)inner, (int64_t)(at < 2 ? width : 2 * inner));
            s->direction[at].again = ed_read_matrix(r, s, 4 * (int64_t)inner, (int64_t)inner);
            ed_require(r, s->direction[at].again.kind != ED_PRODUCT);
        }
        return 2 * inner;
    }
    ed_require(r, h->heads > 0 && width % (size_t)h->heads == 0);
    s->positions.rows = ed_read_matrix(r, s, h->positions, (int64_t)width);
    ed_require(r, s->positions.rows.kind != ED_PRODUCT);
    s->norm = ed_read_norm(r, width);
    s->layer = (ed_layer *)ed_keep(r, (size_t)h->layers + 1, sizeof *s->layer);
    for (int32_t at = 0; at < h->layers && !r->error; at++) {
        ed_layer *l = s->layer + at;
        l->qkv = ed_read_matrix(r, s, 3 * (int64_t)width, (int64_t)width), l->out = ed_read_matrix(r, s, (int64_t)width, (int64_t)width);
        l->middle = ed_read_norm(r, width);
        l->up = ed_read_matrix(r, s, (int64_t)inner, (int64_t)width), l->down = ed_read_matrix(r, s, (int64_t)width, (int64_t)inner);
        l->last = ed_read_norm(r, width);
    }
    s->again = h->times > 1 ? ed_floats(r, width) : NULL;
    return width;
}

static const char *ed_read(ed_student *s, ed_reader *r) {
    const uint32_t one = 1;
    ed_header *h = &s->h;
#ifdef __wasm_relaxed_simd__
    if (ed_signed() != 1 && ed_signed() != -1) return "this engine's relaxed SIMD is not as specified; hand over edgedistill.wasm";
#endif
    if (*(const uint8_t *)&one != 1) return "a processor with its highest byte first; no file of a student can be read here";
    if ((uintptr_t)r->data % 4) return "data: not at a multiple of 4 bytes";
    if (r->size < 8 || memcmp(r->data, "edstudnt", 8)) return "not a student's file" ED_AGAIN;
    if (r->size < ED_START + sizeof *h) return "damaged: cut off" ED_AGAIN;
    if (ed_u32(r->data + 8) < ED_OLDEST) return "an older version of the format than 5; export it again";
    if (ed_u32(r->data + 8) > ED_VERSION) return "a newer version of the format than 6; get a newer core";
    memcpy(h, r->data + ED_START, sizeof *h);
    uint32_t next = ((uint32_t)h->length + 63) & ~63u; /* where a pair has its second file */
    if (next && r->size >= (size_t)next + 8 && !memcmp(r->data + next, "edstudnt", 8)) return "a pair of encoders; export its query or document folder alone";
    if (h->length < 0 || (size_t)h->length != r->size) return "damaged: cut off" ED_AGAIN;
    if (ed_checksum(r->data + ED_START, r->size - ED_START) != ed_u32(r->data + 12)) return "damaged: its checksum is wrong" ED_AGAIN;
    r->at = ED_START + sizeof *h;
    ed_require(r, ed_between(h->kind, ED_STATIC, ED_BILSTM) && ed_between(h->model, ED_WORDPIECE, ED_UNIGRAM));
    ed_require(r, ed_between(h->tokens, 1, ED_MOST) && ed_between(h->width, 1, ED_WIDEST) && ed_between(h->inner, 1, ED_WIDEST));
    ed_require(r, ed_between(h->layers, 0, 1000) && ed_between(h->times, 1, 1000) && ed_between(h->heads, 1, ED_WIDEST));
    ed_require(r, ed_between(h->activation, ED_GELU, ED_RELU) && ed_between(h->pooling, ED_MEAN, ED_WEIGHTED_MEAN));
    ed_require(r, ed_between(h->max_tokens, 1, ED_MOST) && ed_between(h->denses, 0, 16) && ed_between(h->lexical_at, -1, h->denses));
    ed_require(r, !h->reserved && ed_between(h->size, 1, ED_WIDEST) && ed_between(h->unknown, 0, h->tokens - 1));
    ed_require(r, h->int8_range >= .01f && h->int8_range <= 65536);
    ed_require(r, ed_between(h->longest_word, 1, ED_LONGEST_WORD) && ed_between(h->labels, 0, ED_WIDEST) && ed_between(h->first_position, 0, ED_MOST));
    if (h->kind == ED_BERT) ed_require(r, (int64_t)h->first_position + h->max_tokens <= h->positions);
    if (h->kind == ED_BILSTM) ed_require(r, h->layers > 0);
    if (r->error) return r->error;
    ed_array about = ed_exactly(r, -1, 1);
    s->about.text = about.data, s->about.size = about.count;
    ed_require(r, ed_is_utf8(about.data, about.count));
    ed_read_tokenizer(r, s);
    s->table = ed_read_table(r, s);
    size_t width = (size_t)h->width, narrow = r->error ? 0 : ed_row_size(&s->table);
    if (narrow != width && !r->error) s->projection = ed_read_matrix(r, s, h->width, (int64_t)narrow); /* of a factorized table */
    if (h->kind == ED_STATIC && !r->error) s->weights = (const float *)(const void *)ed_exactly(r, h->tokens, 4).data;
    width = r->error ? 0 : ed_read_layers(r, s, width);
    s->dense = (ed_dense *)ed_keep(r, (size_t)h->denses + 1, sizeof *s->dense);
    for (int32_t at = 0; at <= h->denses && !r->error; at++) {
        if (at == h->lexical_at) {
            s->lexical_rows = ed_read_table(r, s);
            s->lexical_weights = (const float *)(const void *)ed_exactly(r, h->tokens, 4).data;
            if (!r->error) s->lexical = ed_read_matrix(r, s, (int64_t)width, (int64_t)ed_row_size(&s->lexical_rows));
        }
        if (at == h->denses || r->error) break;
        ed_array about = ed_exactly(r, 2, 4);
        s->dense[at].activation = ed_i32(about.data), s->dense[at].from_unit = r->error ? 0 : ed_i32(about.data + 4);
        s->dense[at].matrix = ed_read_matrix(r, s, -1, (int64_t)width);
        ed_require(r, ed_between(s->dense[at].activation, ED_GELU, ED_LINEAR) && s->dense[at].matrix.rows <= ED_WIDEST);
        width = (size_t)s->dense[at].matrix.rows;
    }
    ed_require(r, width == (size_t)h->size && (!h->labels || h->labels == h->size));
    ed_numbers(r, 0, 1), ed_exactly(r, 0, 4); /* reserved */
    s->cut = ed_numbers(r, h->cuts, (uint32_t)h->size + 1);
    s->label = ed_strings(r, h->labels, NULL);
    ed_array mean = ed_exactly(r, -1, 4);
    ed_require(r, !mean.count || mean.count == (uint32_t)h->size);
    if (mean.count) s->mean = (const float *)(const void *)mean.data;
    uint32_t golden = 0;
    s->gold = ed_strings(r, -1, &golden), s->golden_roles = ed_numbers(r, golden, ED_ROLES), s->golden_counts = ed_numbers(r, golden, (uint32_t)h->max_tokens + 1);
    s->golden_ids = ed_numbers(r, -1, (uint32_t)h->tokens), s->golden_rows = ed_exactly(r, (int64_t)golden * h->size, 2);
    size_t ids = 0;
    for (uint32_t at = 0; at < golden && !r->error; at++) ids += ed_at(&s->golden_counts, at);
    ed_require(r, ids == s->golden_ids.count && r->at == r->size);
    return r->error;
}

ed_student *ed_open(const void *data, size_t size, const char **error) {
    ed_reader r = {(const uint8_t *)data, 0, size, NULL, NULL};
    const char *name;
    ed_student *s = (ed_student *)calloc(1, sizeof *s);
    *error = s ? ed_read(s, &r) : ED_MEMORY;
    if (s) s->kept = r.kept;
    if (*error) return ed_close(s), (ed_student *)NULL;
    s->encode = ed_pass(&name);
    return s;
}

void ed_close(ed_student *s) {
    for (void **head; s && (head = s->kept) != NULL; free(head)) s->kept = (void **)*head;
    free(s);
}

/* ---- calls ---- */

size_t ed_size(const ed_student *s) { return (size_t)s->h.size; }
size_t ed_max_tokens(const ed_student *s) { return (size_t)s->h.max_tokens; }
const char *ed_about(const ed_student *s, size_t *size) { return *size = s->about.size, (const char *)s->about.text; }
size_t ed_dims(const ed_student *s, size_t index) { return index < s->cut.count ? ed_at(&s->cut, index) : 0; }

const char *ed_label(const ed_student *s, size_t index, size_t *size) {
    if (index >= (size_t)s->h.labels) return NULL;
    return *size = s->label[index].size, (const char *)s->label[index].text;
}

const char *ed_embed_ids(const ed_student *s, const uint32_t *ids, size_t count, float *embedding) {
    if (!count || count > (size_t)s->h.max_tokens) return "ids: none, or more than the student takes";
    for (size_t at = 0; at < count; at++) if (ids[at] >= (uint32_t)s->h.tokens) return "ids: one that is not in the vocabulary";
    if (!s->encode(s, ids, count, embedding)) return ED_MEMORY;
    for (size_t j = 0; j < (size_t)s->h.size; j++) if (!(embedding[j] - embedding[j] == 0)) return "damaged: an embedding that is not finite" ED_AGAIN;
    return NULL;
}

const char *ed_embed(const ed_student *s, const char *text, size_t size, int role, float *embedding) {
    size_t count;
    uint32_t *ids = ED_NEW(uint32_t, s->h.max_tokens);
    const char *error = ids ? ed_tokenize(s, text, size, role, ids, &count) : ED_MEMORY;
    if (!error) error = ed_embed_ids(s, ids, count, embedding);
    free(ids);
    return error;
}

void ed_cut(float *embedding, size_t dims) { (void)ed_unit(embedding, dims); }

void ed_int8(const ed_student *s, const float *embedding, size_t dims, int8_t *bytes) {
    double scale = 127 * sqrt((double)dims) / (double)s->h.int8_range; /* a component of a unit row has mean square 1 / dims */
    for (size_t j = 0; j < dims; j++) {
        float value = (float)rint((double)(embedding[j] * (float)scale));
        bytes[j] = (int8_t)(value > 127 ? 127 : value < -127 ? -127 : value);
    }
}

void ed_bits(const ed_student *s, const float *embedding, size_t dims, uint8_t *bits) {
    double whole = 0, part = 0;
    for (size_t j = 0; s->mean && j < (size_t)s->h.size; j++) whole += (double)s->mean[j] * s->mean[j], part += j < dims ? (double)s->mean[j] * s->mean[j] : 0;
    float longer = (float)(sqrt(whole) / fmax(sqrt(part), 1e-12)); /* of a cut embedding, less the cut mean at its whole length */
    memset(bits, 0, dims / 8);
    for (size_t j = 0; j < dims / 8 * 8; j++) bits[j / 8] |= (uint8_t)((embedding[j] > (s->mean ? s->mean[j] * longer : 0)) << (7 - j % 8));
}

static void ed_probabilities(double *row, size_t size) {
    double most = row[0], sum = 0;
    for (size_t j = 1; j < size; j++) most = row[j] > most ? row[j] : most;
    for (size_t j = 0; j < size; j++) sum += row[j] = exp(row[j] - most);
    for (size_t j = 0; j < size; j++) row[j] /= sum;
}

/* 1 − the largest difference of a probability, or the cosine; −1 of what is not finite. `row` has `size` places for each. */
static double ed_likeness(const ed_student *s, const float *found, const uint8_t *stored, double *row) {
    size_t size = (size_t)s->h.size;
    double product = 0, a = 0, b = 0, most = 0;
    for (size_t j = 0; j < size; j++) {
        uint32_t half = (uint32_t)(stored[2 * j] | stored[2 * j + 1] << 8);
        if ((half & 0x7C00) == 0x7C00) return -1;
        row[j] = found[j], row[size + j] = ed_half(half);
    }
    if (s->h.labels) ed_probabilities(row, size), ed_probabilities(row + size, size);
    for (size_t j = 0; j < size; j++) {
        product += row[j] * row[size + j], a += row[j] * row[j], b += row[size + j] * row[size + j];
        most = fmax(most, fabs(row[j] - row[size + j]));
    }
    return s->h.labels ? 1 - most : product / fmax(sqrt(a * b), 1e-24);
}

const char *ed_check(const ed_student *s, double *worst, double *least) {
    size_t size = (size_t)s->h.size, past = 0;
    float *found = ED_NEW(float, size);
    double *rows = ED_NEW(double, 2 * size);
    uint32_t *ids = ED_NEW(uint32_t, s->h.max_tokens);
    const char *error = found && rows && ids ? NULL : ED_MEMORY;
    *worst = 1, *least = (double)s->h.least;
    for (size_t at = 0; at < s->golden_roles.count && !error; at++) {
        size_t count = 0, expected = ed_at(&s->golden_counts, at);
        error = ed_tokenize(s, (const char *)s->gold[at].text, s->gold[at].size, (int)ed_at(&s->golden_roles, at), ids, &count);
        int same = count == expected;
        for (size_t i = 0; i < count && same; i++) same = ids[i] == ed_at(&s->golden_ids, past + i);
        if (!error && !same) error = "a golden text has other token ids" ED_AGAIN;
        if (!error) error = ed_embed_ids(s, ids, count, found);
        if (!error) *worst = fmin(*worst, ed_likeness(s, found, s->golden_rows.data + 2 * size * at, rows));
        past += expected;
    }
    free(found), free(rows), free(ids);
    return error;
}

#else
/* ---- the layers, once for each instruction set: ED_PASS, ED_KERNEL, ED_TARGET; ED_W floats in a vector ---- */

#define ED_W (ED_KERNEL == ED_AVX512VNNI ? 16 : ED_KERNEL == ED_AVX2 || ED_KERNEL == ED_AVXVNNI ? 8 : 4)
#ifndef ED_TARGET
#define ED_TARGET
#endif
#ifdef __GNUC__
typedef float ED_(vf) __attribute__((vector_size(4 * ED_W)));
typedef int32_t ED_(vi) __attribute__((vector_size(4 * ED_W)));
typedef uint8_t ED_(vb) __attribute__((vector_size(ED_W)));
typedef ED_(vf) ED_(vfu) __attribute__((aligned(4), may_alias)); /* as it stands in memory */
typedef ED_(vi) ED_(viu) __attribute__((aligned(4), may_alias));
typedef ED_(vb) ED_(vbu) __attribute__((aligned(1), may_alias));
#define ED_TO(type, v) __builtin_convertvector(v, type)
#define ED_LANE(v, i) (v)[i]
#else
#undef ED_W
#define ED_W 1
typedef float ED_(vf), ED_(vfu);
typedef int32_t ED_(vi), ED_(viu);
typedef uint8_t ED_(vb), ED_(vbu);
#define ED_TO(type, v) ((type)(v))
#define ED_LANE(v, i) ((void)(i), v)
#endif
#define VF ED_(vf)
#define VI ED_(vi)
#define ED_LOAD(p) ED_(load)(p)
#define ED_STORE(p, v) (*(ED_(vfu) *)(void *)(p) = (v))

ED_TARGET static inline VF ED_(load)(const float *p) { return *(const ED_(vfu) *)(const void *)p; }
ED_TARGET static inline VI ED_(load_integers)(const int32_t *p) { return *(const ED_(viu) *)(const void *)p; }
ED_TARGET static inline VF ED_(all)(float x) { VF zero = {0}; return x - zero; }
ED_TARGET static inline VI ED_(bits)(VF x) { VI y; memcpy(&y, &x, sizeof y); return y; }
ED_TARGET static inline VF ED_(from_bits)(VI x) { VF y; memcpy(&y, &x, sizeof y); return y; }

ED_TARGET static inline VF ED_(max)(VF a, VF b) {
#if ED_W > 1
    VI greater = (VI)(a > b);
    return ED_(from_bits)((ED_(bits)(a) & greater) | (ED_(bits)(b) & ~greater));
#else
    return a > b ? a : b;
#endif
}

ED_TARGET static inline VF ED_(min)(VF a, VF b) { return -ED_(max)(-a, -b); }
ED_TARGET static inline VF ED_(abs)(VF a) { return ED_(max)(a, -a); }

ED_TARGET static inline float ED_(sum)(VF v) {
    float sum = 0;
    for (int i = 0; i < ED_W; i++) sum += ED_LANE(v, i);
    return sum;
}

ED_TARGET static inline float ED_(most)(VF v) {
    float most = ED_LANE(v, 0);
    for (int i = 1; i < ED_W; i++) most = ED_LANE(v, i) > most ? ED_LANE(v, i) : most;
    return most;
}

/* The nearest integer, halves to the even one, of a number below 2^22: what is behind the point of x + 1.5 · 2^23 is lost. */
ED_TARGET static inline VI ED_(round)(VF x) { return ED_(bits)(x + ED_(all)(12582912.f)) - 0x4B400000; }

/* e^x, with a relative error of 2e-7: 2^n · e^r, r below ln 2 / 2 (the polynomial of Cephes). */
ED_TARGET static inline VF ED_(exp)(VF x) {
    x = ED_(min)(ED_(max)(x, ED_(all)(-87.f)), ED_(all)(88.f));
    VI n = ED_(round)(x * 1.44269504f);
    VF m = ED_TO(VF, n), r = x - m * .693359375f + m * 2.12194440e-4f;
    VF p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r + .5f;
    return (p * r * r + r + 1.f) * ED_(from_bits)((n + 127) << 23);
}

ED_TARGET static inline VF ED_(activated)(VF x, int32_t activation) {
    if (activation == ED_RELU) return ED_(max)(x, ED_(all)(0));
    if (activation == ED_SIGMOID) return 1.f / (1.f + ED_(exp)(-x));
    if (activation == ED_TANH) return 1.f - 2.f / (1.f + ED_(exp)(2.f * x));
    if (activation == ED_GELU_TANH) return x - x / (1.f + ED_(exp)(1.5957691216f * (x + .044715f * x * x * x)));
    if (activation != ED_GELU) return x;
    VF a = ED_(abs)(x) * .70710678f, t = 1.f / (1.f + .3275911f * a); /* erf: Abramowitz and Stegun 7.1.26, error 1.5e-7 */
    VF tail = t * (.254829592f + t * (-.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)))) * ED_(exp)(-a * a);
    return ED_(max)(x, ED_(all)(0)) - .5f * ED_(abs)(x) * tail;
}

ED_TARGET static void ED_(activate)(float *x, size_t size, int32_t activation) {
    for (size_t j = 0; j < size; j += ED_W) ED_STORE(x + j, ED_(activated)(ED_LOAD(x + j), activation));
}

/* The one thing that instruction sets do in their own ways: sums over k columns of each of 4 rows, bytes a times signed bytes w,
   up to ED_STEP `rows` in blocks of 16 behind each other, into `out` (4, ED_STEP). a's bytes count as a − ED_SHIFT. No pair of products leaves 16 bits:
   the writer sees to that (edgedistill/quantization/int8.py). */
#define ED_ROWS(DO) DO(0) DO(1) DO(2) DO(3)
#if ED_KERNEL == ED_RELAXED
#define ED_SHIFT (ed_signed() > 0 ? 128 : 0)
#else
#define ED_SHIFT (ED_KERNEL == ED_NEON || ED_KERNEL == ED_DOTPROD ? 128 : 0)
#endif

#if ED_KERNEL == ED_AVX512VNNI
#define ED_STEP 64
ED_TARGET static inline void ED_(dot)(const uint8_t *a, size_t k, const int8_t *w, size_t rows, int32_t *out) {
    /* 16 sums at a time hide the 5 cycles that one takes */
    const int8_t *w1 = rows > 16 ? w + 16 * k : w, *w2 = rows > 32 ? w + 32 * k : w, *w3 = rows > 48 ? w + 48 * k : w;
#define ED_ZERO(r) __m512i s##r = _mm512_setzero_si512(), t##r = s##r, u##r = s##r, v##r = s##r;
#define ED_MORE(r) x = _mm512_set1_epi32(ed_i32(a + r * k + i)), s##r = _mm512_dpbusd_epi32(s##r, x, p), t##r = _mm512_dpbusd_epi32(t##r, x, q), \
    u##r = _mm512_dpbusd_epi32(u##r, x, y), v##r = _mm512_dpbusd_epi32(v##r, x, z);
#define ED_PUT(r) _mm512_storeu_si512(out + 64 * r, s##r), _mm512_storeu_si512(out + 64 * r + 16, t##r), \
    _mm512_storeu_si512(out + 64 * r + 32, u##r), _mm512_storeu_si512(out + 64 * r + 48, v##r);
    ED_ROWS(ED_ZERO)
    for (size_t i = 0; i < k; i += 4) {
        __m512i p = _mm512_loadu_si512(w + 16 * i), q = _mm512_loadu_si512(w1 + 16 * i), y = _mm512_loadu_si512(w2 + 16 * i), z = _mm512_loadu_si512(w3 + 16 * i), x;
        ED_ROWS(ED_MORE)
    }
    ED_ROWS(ED_PUT)
}
#else
#define ED_STEP 32
#if ED_KERNEL == ED_128_BITS
typedef int16_t ED_(words) __attribute__((vector_size(16)));
typedef ED_(words) ED_(wordsu) __attribute__((aligned(1), may_alias));
ED_TARGET static inline ED_(words) ED_(load_words)(const void *p) { return *(const ED_(wordsu) *)p; }
#ifdef __wasm_simd128__
#define ED_MADD(x, y) ((VI)wasm_i32x4_dot_i16x8((v128_t)(x), (v128_t)(y)))
#else
#define ED_MADD(x, y) ((VI)_mm_madd_epi16((__m128i)(x), (__m128i)(y)))
#endif

/* 16 rows of weights in 16 bits: of each 4 columns of 4 rows the even ones, then the odd ones. */
ED_TARGET static void ED_(widen)(const int8_t *w, size_t k, int16_t *out) {
    for (size_t i = 0; i < k; i++, w += 16, out += 16) {
        ED_(words) x = ED_(load_words)(w);
        *(ED_(wordsu) *)out = (x << 8) >> 8, *(ED_(wordsu) *)(out + 8) = x >> 8;
    }
}
#endif

ED_TARGET static inline void ED_(dot_16)(const uint8_t *a, size_t k, const int8_t *w, int32_t *out) {
#if ED_KERNEL == ED_AVX2 || ED_KERNEL == ED_AVXVNNI
#if ED_KERNEL == ED_AVXVNNI
#define ED_DOT(s, a, w) _mm256_dpbusd_avx_epi32(s, a, w)
#else
#define ED_DOT(s, a, w) _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, w), _mm256_set1_epi16(1)))
#endif
#define ED_ZERO(r) __m256i s##r = _mm256_setzero_si256(), t##r = s##r;
#define ED_MORE(r) x = _mm256_set1_epi32(ed_i32(a + r * k + i)), s##r = ED_DOT(s##r, x, u), t##r = ED_DOT(t##r, x, v);
#define ED_PUT(r) _mm256_storeu_si256((__m256i *)(out + 32 * r), s##r), _mm256_storeu_si256((__m256i *)(out + 32 * r + 8), t##r);
    ED_ROWS(ED_ZERO)
    for (size_t i = 0; i < k; i += 4, w += 64) {
        __m256i u = _mm256_loadu_si256((const __m256i *)w), v = _mm256_loadu_si256((const __m256i *)(w + 32)), x;
        ED_ROWS(ED_MORE)
    }
    ED_ROWS(ED_PUT)
#elif ED_KERNEL == ED_128_BITS
    /* without products of bytes: even and odd columns as ED_(widen) writes them, 2 rows at a time, which is what 16 registers hold */
#define ED_ZERO(c) VI s##c = {0}, t##c = s##c;
#define ED_MORE(c) { ED_(words) even = ED_(load_words)(weights + 32 * c), odd = ED_(load_words)(weights + 32 * c + 16); \
    s##c += ED_MADD(a0, even) + ED_MADD(a1, odd), t##c += ED_MADD(b0, even) + ED_MADD(b1, odd); }
#define ED_PUT(c) *(ED_(viu) *)(out + 32 * r + 4 * c) = s##c, *(ED_(viu) *)(out + 32 * r + 32 + 4 * c) = t##c;
    for (size_t r = 0; r < 4; r += 2) {
        const int8_t *weights = w;
        ED_ROWS(ED_ZERO)
        for (size_t i = 0; i < k; i += 4, weights += 128) {
            VI zero = {0}, x = zero + ed_i32(a + r * k + i), y = zero + ed_i32(a + r * k + k + i);
            VI a0 = x & 0x00FF00FF, a1 = x >> 8 & 0x00FF00FF, b0 = y & 0x00FF00FF, b1 = y >> 8 & 0x00FF00FF;
            ED_ROWS(ED_MORE)
        }
        ED_ROWS(ED_PUT)
    }
#elif ED_KERNEL == ED_NEON || ED_KERNEL == ED_DOTPROD || ED_KERNEL == ED_RELAXED
#if ED_KERNEL == ED_NEON
#define ED_LANES int8x8_t
#define ED_ZERO(c) int32x4_t s##c = vdupq_n_s32(0), t##c = s##c, u##c = s##c, v##c = s##c;
#define ED_MORE(c) { int8x16_t x = vld1q_s8(weights + 16 * c); \
    s##c = vpadalq_s16(s##c, vmull_s8(vget_low_s8(x), u)), t##c = vpadalq_s16(t##c, vmull_s8(vget_high_s8(x), u)); \
    u##c = vpadalq_s16(u##c, vmull_s8(vget_low_s8(x), v)), v##c = vpadalq_s16(v##c, vmull_s8(vget_high_s8(x), v)); }
#define ED_PUT(c) vst1q_s32(out + 32 * r + 4 * c, vpaddq_s32(s##c, t##c)), vst1q_s32(out + 32 * r + 32 + 4 * c, vpaddq_s32(u##c, v##c));
#define ED_A(p) vreinterpret_s8_u32(vdup_n_u32(ed_u32(p) ^ 0x80808080u))
#elif ED_KERNEL == ED_DOTPROD
#define ED_LANES int8x16_t
#define ED_ZERO(c) int32x4_t s##c = vdupq_n_s32(0), t##c = s##c;
#define ED_MORE(c) { int8x16_t x = vld1q_s8(weights + 16 * c); s##c = vdotq_s32(s##c, x, u), t##c = vdotq_s32(t##c, x, v); }
#define ED_PUT(c) vst1q_s32(out + 32 * r + 4 * c, s##c), vst1q_s32(out + 32 * r + 32 + 4 * c, t##c);
#define ED_A(p) vreinterpretq_s8_u32(vdupq_n_u32(ed_u32(p) ^ 0x80808080u))
#else
#define ED_LANES v128_t
#define ED_ZERO(c) v128_t s##c = wasm_i32x4_splat(0), t##c = s##c;
#define ED_MORE(c) { v128_t x = wasm_v128_load(weights + 16 * c); s##c = ED_RELAXED_DOT(s##c, x, u), t##c = ED_RELAXED_DOT(t##c, x, v); }
#define ED_PUT(c) wasm_v128_store(out + 32 * r + 4 * c, s##c), wasm_v128_store(out + 32 * r + 32 + 4 * c, t##c);
#define ED_A(p) wasm_i32x4_splat((int32_t)(ed_u32(p) ^ shift))
    uint32_t shift = ED_SHIFT * 0x01010101u;
#endif
    for (size_t r = 0; r < 4; r += 2) {
        const int8_t *weights = w;
        ED_ROWS(ED_ZERO)
        for (size_t i = 0; i < k; i += 4, weights += 64) {
            ED_LANES u = ED_A(a + r * k + i), v = ED_A(a + r * k + k + i);
            ED_ROWS(ED_MORE)
        }
        ED_ROWS(ED_PUT)
    }
#else
    for (size_t r = 0; r < 4; r++) memset(out + 32 * r, 0, 16 * sizeof *out);
    for (size_t i = 0; i < k; i += 4, w += 64)
        for (size_t r = 0; r < 4; r++)
            for (size_t c = 0; c < 16; c++)
                for (size_t j = 0; j < 4; j++) out[32 * r + c] += a[r * k + i + j] * w[4 * c + j];
#endif
}

ED_TARGET static inline void ED_(dot)(const uint8_t *a, size_t k, const int8_t *w, size_t rows, int32_t *out) {
    ED_(dot_16)(a, k, w, out);
    if (rows > 16) ED_(dot_16)(a, k, w + (ED_KERNEL == ED_128_BITS ? 32 : 16) * k, out + 16);
}
#endif
#undef ED_ZERO
#undef ED_MORE
#undef ED_PUT
#undef ED_A
#undef ED_LANES
#undef ED_DOT

/* Rows of a product's input in bytes, and the scale of each. */
ED_TARGET static void ED_(quantize)(const ed_matrix *m, const float *x, size_t stride, size_t n, const ed_work *w) {
    size_t wide = ED_PAD(m->cols);
    float zero = m->zero == ED_FIXED ? 128.f : (float)m->zero;
    for (size_t t = 0; t < n; t++, x += stride) {
        VF most = ED_(all)(0);
        float scale = 1;
        if (m->zero != ED_FIXED) {
            for (size_t j = 0; j < wide; j += ED_W) most = ED_(max)(most, m->zero == ED_SIGNED ? ED_(abs)(ED_LOAD(x + j)) : ED_LOAD(x + j));
            float top = ED_(most)(most), part = 1 / (m->zero == ED_SIGNED ? 127.f : 255 - zero);
            float least = m->zero == ED_SIGNED ? 1e-12f * part : m->zero ? .17f / zero : 1e-12f; /* GELU is above −.17 */
            scale = top * part > least ? top * part : least;
        }
        for (size_t j = 0; j < wide; j += ED_W) {
            VF v = m->zero == ED_FIXED ? ED_LOAD(x + j) * ED_LOAD(m->factors + j) / m->step : ED_LOAD(x + j) / scale;
            VI q = ED_(round)(ED_(min)(ED_(max)(v, ED_(all)(-zero)), ED_(all)(255 - zero))) + (int32_t)zero;
            *(ED_(vbu) *)(w->bytes + t * wide + j) = ED_TO(ED_(vb), q);
        }
        w->scales[t] = scale;
    }
}

/* 16 rows of a matrix that is no ED_PRODUCT, as floats, column after column. */
ED_TARGET static void ED_(panel)(const ed_matrix *m, size_t row, float *panel) {
    size_t cols = (size_t)m->cols, high = (size_t)m->rows - row < 16 ? (size_t)m->rows - row : 16;
    memset(panel, 0, ED_PAD(cols) * 16 * sizeof *panel);
    for (size_t c = 0; c < high; c++)
        for (size_t j = 0; j < cols; j++) panel[16 * j + c] = ed_value(m, row + c, j);
}

/* 16 sums over `wide` columns of each of 4 rows, in floats. */
ED_TARGET static void ED_(multiply)(const float *x, size_t stride, const float *panel, size_t wide, float *out) {
    for (size_t c = 0; c < 16; c += ED_W) {
        VF s0 = ED_(all)(0), s1 = s0, s2 = s0, s3 = s0;
        for (size_t j = 0; j < wide; j++) {
            VF p = ED_LOAD(panel + 16 * j + c);
            s0 += x[j] * p, s1 += x[stride + j] * p, s2 += x[2 * stride + j] * p, s3 += x[3 * stride + j] * p;
        }
        ED_STORE(out + c, s0), ED_STORE(out + 16 + c, s1), ED_STORE(out + 32 + c, s2), ED_STORE(out + 48 + c, s3);
    }
}

/* y (n, rows) = x (n, cols) · matrixᵀ + bias, or that added to y. x has rows in fours. */
ED_TARGET static void ED_(product)(const ed_matrix *m, const float *x, size_t xs, size_t n, float *y, size_t ys, int adds, const ed_work *w) {
    size_t wide = ED_PAD(m->cols), high = ED_PAD(m->rows);
    int bytes = m->kind == ED_PRODUCT;
    if (bytes) ED_(quantize)(m, x, xs, n, w);
    size_t step = bytes ? ED_STEP : 16;
    int32_t zero = (m->zero == ED_FIXED ? 128 : m->zero) - ED_SHIFT;
    for (size_t c = 0; c < high; c += step) {
        const int8_t *weights = (const int8_t *)m->values + c * wide;
        size_t end = high - c < step ? high - c : step;
        if (!bytes) ED_(panel)(m, c, w->panel);
#if ED_KERNEL == ED_128_BITS
        int16_t *words = (int16_t *)(void *)w->panel;
        for (size_t j = 0; bytes && j < end; j += 16) ED_(widen)(weights + j * wide, wide, words + j * wide);
        if (bytes) weights = (const int8_t *)(const void *)words;
#endif
        for (size_t t = 0; t < n; t += 4) {
            int32_t sums[4 * ED_STEP];
            float found[64];
            if (bytes) ED_(dot)(w->bytes + t * wide, wide, weights, end, sums);
            else ED_(multiply)(x + t * xs, xs, w->panel, wide, found);
            for (size_t r = 0; r < 4 && t + r < n; r++)
                for (size_t j = 0; j < end; j += ED_W) {
                    float *place = y + (t + r) * ys + c + j;
                    VF v = bytes ? ED_TO(VF, ED_(load_integers)(sums + ED_STEP * r + j) - zero * ED_(load_integers)(m->sums + c + j)) : ED_LOAD(found + 16 * r + j);
                    if (bytes) v = v * ED_LOAD(m->scales + c + j) * w->scales[t + r];
                    if (m->bias) v += ED_LOAD(m->bias + c + j);
                    if (adds) v += ED_LOAD(place);
                    ED_STORE(place, v);
                }
        }
    }
}

ED_TARGET static void ED_(normalize)(float *x, size_t n, size_t width, const float *scale, const float *shift, float epsilon) {
    size_t wide = ED_PAD(width);
    for (size_t t = 0; t < n; t++, x += wide) {
        VF sum = ED_(all)(0), square = sum;
        for (size_t j = 0; j < wide; j += ED_W) sum += ED_LOAD(x + j);
        float mean = ED_(sum)(sum) / (float)width;
        for (size_t j = 0; j < wide; j += ED_W) {
            VF d = ED_LOAD(x + j) - mean;
            square += d * d;
        }
        float variance = (ED_(sum)(square) - (float)(wide - width) * mean * mean) / (float)width; /* padding is 0, not the mean */
        float by = 1 / sqrtf((variance > 0 ? variance : 0) + epsilon);
        for (size_t j = 0; j < wide; j += ED_W) ED_STORE(x + j, (ED_LOAD(x + j) - mean) * by * ED_LOAD(scale + j) + ED_LOAD(shift + j));
    }
}

/* Attention of each head over n tokens: qkv (n, 3 · width) -> out (n, width). Keys are turned, so that 4 queries at a time
   meet a vector of keys in each instruction. */
ED_TARGET static void ED_(attend)(const ed_student *s, const float *qkv, size_t n, float *out, ed_work w) {
    size_t width = (size_t)s->h.width, heads = (size_t)s->h.heads, size = width / heads, wide = ED_PAD(size), many = ED_PAD(n), stride = ED_PAD(3 * width);
    float *keys = ed_take(&w, size * many), *values = ed_take(&w, n * wide), *scores = ed_take(&w, 4 * many), *mixed = ed_take(&w, 4 * wide);
    memset(keys, 0, size * many * sizeof *keys), memset(values, 0, n * wide * sizeof *values);
    float scale = 1 / sqrtf((float)size);
    for (size_t h = 0; h < heads; h++) {
        for (size_t t = 0; t < n; t++)
            for (size_t j = 0; j < size; j++) {
                keys[j * many + t] = qkv[t * stride + width + h * size + j] * scale;
                values[t * wide + j] = qkv[t * stride + 2 * width + h * size + j];
            }
        for (size_t t = 0; t < n; t += 4) {
            const float *q[4];
            for (size_t r = 0; r < 4; r++) q[r] = qkv + (t + r < n ? t + r : n - 1) * stride + h * size;
            for (size_t c = 0; c < many; c += ED_W) {
                VF s0 = ED_(all)(0), s1 = s0, s2 = s0, s3 = s0;
                for (size_t j = 0; j < size; j++) {
                    VF k = ED_LOAD(keys + j * many + c);
                    s0 += q[0][j] * k, s1 += q[1][j] * k, s2 += q[2][j] * k, s3 += q[3][j] * k;
                }
                ED_STORE(scores + c, s0), ED_STORE(scores + many + c, s1), ED_STORE(scores + 2 * many + c, s2), ED_STORE(scores + 3 * many + c, s3);
            }
            for (size_t r = 0; r < 4; r++) {
                float *row = scores + r * many;
                for (size_t c = n; c < many; c++) row[c] = -1e30f;
                VF most = ED_LOAD(row), sum = ED_(all)(0);
                for (size_t c = ED_W; c < many; c += ED_W) most = ED_(max)(most, ED_LOAD(row + c));
                float top = ED_(most)(most);
                for (size_t c = 0; c < many; c += ED_W) {
                    VF e = ED_(exp)(ED_LOAD(row + c) - top);
                    ED_STORE(row + c, e), sum += e;
                }
                float by = 1 / ED_(sum)(sum);
                for (size_t c = 0; c < many; c += ED_W) ED_STORE(row + c, ED_LOAD(row + c) * by);
            }
            for (size_t c = 0; c < wide; c += ED_W) {
                VF s0 = ED_(all)(0), s1 = s0, s2 = s0, s3 = s0;
                for (size_t j = 0; j < n; j++) {
                    VF v = ED_LOAD(values + j * wide + c);
                    s0 += scores[j] * v, s1 += scores[many + j] * v, s2 += scores[2 * many + j] * v, s3 += scores[3 * many + j] * v;
                }
                ED_STORE(mixed + c, s0), ED_STORE(mixed + wide + c, s1), ED_STORE(mixed + 2 * wide + c, s2), ED_STORE(mixed + 3 * wide + c, s3);
            }
            for (size_t r = 0; r < 4 && t + r < n; r++) memcpy(out + (t + r) * ED_PAD(width) + h * size, mixed + r * wide, size * sizeof *out);
        }
    }
}

/* Token embeddings x (n, width) through BERT's layers, in place. */
ED_TARGET static void ED_(layers)(const ed_student *s, const uint32_t *ids, float *x, size_t n, ed_work w) {
    size_t width = (size_t)s->h.width, wide = ED_PAD(width), inner = ED_PAD(s->h.inner), rows = (n + 3) / 4 * 4;
    float *mid = ed_take(&w, rows * (inner > ED_PAD(3 * width) ? inner : ED_PAD(3 * width))), *mixed = ed_take(&w, rows * wide);
    memset(mixed, 0, rows * wide * sizeof *mixed);
    size_t first = (size_t)s->h.first_position, next = first; /* where it is not 0, it is behind the padding id, which has a row too */
    for (size_t t = 0; t < n; t++) ed_row(&s->positions, first && ids[t] == first - 1 ? first - 1 : next++, 1, x + t * wide);
    ED_(normalize)(x, n, width, s->norm.scale, s->norm.shift, s->h.epsilon);
    for (int32_t time = 0; time < s->h.times; time++)
        for (int32_t at = 0; at < s->h.layers; at++) {
            const ed_layer *l = s->layer + at;
            int again = at + 1 == s->h.layers && time + 1 < s->h.times;
            ED_(product)(&l->qkv, x, wide, n, mid, ED_PAD(3 * width), 0, &w);
            ED_(attend)(s, mid, n, mixed, w);
            ED_(product)(&l->out, mixed, wide, n, x, wide, 1, &w);
            ED_(normalize)(x, n, width, l->middle.scale, l->middle.shift, s->h.epsilon);
            ED_(product)(&l->up, x, wide, n, mid, inner, 0, &w);
            ED_(activate)(mid, n * inner, s->h.activation);
            ED_(product)(&l->down, mid, inner, n, x, wide, 1, &w);
            ED_(normalize)(x, n, width, l->last.scale, again ? s->again : l->last.shift, s->h.epsilon);
        }
}

/* Token embeddings x (n, ·) through LSTMs in both directions; returns the last one's states (n, 2 · inner). */
ED_TARGET static float *ED_(lstm)(const ed_student *s, float *x, size_t n, ed_work *w) {
    size_t inner = (size_t)s->h.inner, wide = ED_PAD(inner), both = ED_PAD(2 * inner), four = ED_PAD(4 * inner), rows = (n + 3) / 4 * 4;
    float *gates = ed_take(w, rows * four), *panels = ed_take(w, four * wide), *now = ed_take(w, four), *fresh = ed_take(w, wide);
    float *state = ed_take(w, wide), *cell = ed_take(w, wide), *out = ed_take(w, rows * both), *spare = ed_take(w, rows * both), sums[64];
    size_t in = ED_PAD(s->h.width);
    for (int32_t at = 0; at < 2 * s->h.layers; at++) {
        const ed_direction *d = s->direction + at;
        ED_(product)(&d->in, x, in, n, gates, four, 0, w);
        for (size_t c = 0; c < four; c += 16) ED_(panel)(&d->again, c, panels + c * wide);
        memset(state, 0, wide * sizeof *state), memset(cell, 0, wide * sizeof *cell);
        for (size_t step = 0; step < n; step++) {
            size_t t = at % 2 ? n - 1 - step : step;
            for (size_t c = 0; c < four; c += 16) {
                ED_(multiply)(state, 0, panels + c * wide, wide, sums);
                for (size_t j = 0; j < 16; j++) now[c + j] = gates[t * four + c + j] + sums[j];
            }
            memcpy(fresh, now + 3 * inner, inner * sizeof *fresh);
            ED_(activate)(fresh, wide, ED_TANH), ED_(activate)(now, four, ED_SIGMOID); /* input, output, forget */
            for (size_t j = 0; j < inner; j++) fresh[j] = cell[j] = now[2 * inner + j] * cell[j] + now[j] * fresh[j];
            ED_(activate)(fresh, wide, ED_TANH);
            for (size_t j = 0; j < inner; j++) out[t * both + (size_t)(at % 2) * inner + j] = state[j] = now[inner + j] * fresh[j];
        }
        if (at % 2) x = out, out = spare, spare = x, in = both;
    }
    return x;
}

/* Pool tokens x (n, wide) to one row. */
ED_TARGET static void ED_(pool)(const float *x, size_t n, size_t wide, int32_t pooling, float *out) {
    float total = pooling == ED_MEAN_SQRT ? sqrtf((float)n) : pooling == ED_WEIGHTED_MEAN ? (float)n * (float)(n + 1) / 2 : (float)n;
    size_t first = pooling == ED_LAST_TOKEN ? n - 1 : 0, end = pooling == ED_CLS ? 1 : n;
    for (size_t j = 0; j < wide; j += ED_W) {
        VF sum = pooling == ED_MAX ? ED_LOAD(x + j) : ED_(all)(0);
        for (size_t t = first; t < end; t++) {
            VF v = ED_LOAD(x + t * wide + j);
            if (pooling == ED_MAX) sum = ED_(max)(sum, v);
            else sum += pooling == ED_WEIGHTED_MEAN ? v * (float)(t + 1) : v;
        }
        ED_STORE(out + j, pooling == ED_CLS || pooling == ED_LAST_TOKEN || pooling == ED_MAX ? sum : sum / total);
    }
}

/* Add a projection of the text's words to a row of unit length (edgedistill/students/head.py, Lexical). A token that continues
   a word, which has a weight below zero, is multiplied with the one before it. */
ED_TARGET static void ED_(add_words)(const ed_student *s, const uint32_t *ids, size_t n, float *row, ed_work w) {
    size_t size = ed_row_size(&s->lexical_rows);
    float *now = ed_take(&w, size), *past = ed_take(&w, size), *mean = ed_take(&w, 4 * ED_PAD(size)), before = 0;
    memset(mean, 0, 4 * ED_PAD(size) * sizeof *mean), memset(past, 0, size * sizeof *past);
    for (size_t t = 0; t < n; t++) {
        float weight = s->lexical_weights[ids[t]], own = fabsf(weight);
        int goes_on = signbit(weight) != 0;
        memset(now, 0, size * sizeof *now);
        ed_row(&s->lexical_rows, ids[t], 1, now);
        for (size_t j = 0; j < size; j++) mean[j] += goes_on ? now[j] * past[j] * (own + before) : now[j] * own;
        float *other = past;
        past = now, now = other, before = own;
    }
    ed_unit(mean, size);
    float longer = sqrtf(sqrtf((float)n / 16));
    for (size_t j = 0; j < size; j++) mean[j] *= longer;
    ED_(product)(&s->lexical, mean, ED_PAD(size), 1, row, ED_PAD(s->lexical.rows), 1, &w);
}

/* What follows pooling: dense layers, words, unit length. */
ED_TARGET static void ED_(finish)(const ed_student *s, const uint32_t *ids, size_t n, float *row, float *spare, float *out, const ed_work *w) {
    size_t width = s->h.kind == ED_BILSTM ? 2 * (size_t)s->h.inner : (size_t)s->h.width, size = (size_t)s->h.size;
    for (int32_t i = 0; i <= s->h.denses; i++) {
        if (i == s->h.lexical_at) ed_unit(row, width), ED_(add_words)(s, ids, n, row, *w);
        if (i == s->h.denses) break;
        const ed_dense *d = s->dense + i;
        if (d->from_unit) ed_unit(row, width);
        ED_(product)(&d->matrix, row, ED_PAD(width), 1, spare, ED_PAD(d->matrix.rows), 0, w);
        width = (size_t)d->matrix.rows;
        ED_(activate)(spare, ED_PAD(width), d->activation);
        for (size_t j = width; j < ED_PAD(width); j++) spare[j] = 0; /* sigmoid(0) is not 0 */
        float *other = row;
        row = spare, spare = other;
    }
    memcpy(out, row, size * sizeof *out);
    if (!s->h.labels) ed_unit(out, size);
}

/* The embedding of a text's tokens; 0 without memory. */
ED_TARGET static int ED_(encode)(const ed_student *s, const uint32_t *ids, size_t n, float *out) {
    size_t width = (size_t)s->h.width, wide = ED_PAD(width), inner = ED_PAD(s->h.inner), rows = (n + 3) / 4 * 4;
    size_t narrow = ED_PAD(ed_row_size(&s->table)), last = s->widest > 2 * inner ? s->widest : 2 * inner;
    for (int32_t i = 0; i < s->h.denses; i++) if (ED_PAD(s->dense[i].matrix.rows) > last) last = ED_PAD(s->dense[i].matrix.rows);
    last = last > wide ? last : wide;
    uint64_t many = ED_PAD(n), head = ED_PAD(width / (size_t)s->h.heads), four = 4 * inner + 16, three = inner > 3 * wide ? inner : 3 * wide;
    uint64_t floats = many * (wide + narrow + 1 + s->widest / 4) + 8 * (last + 16) + 8 * ED_PAD(ed_row_size(&s->lexical_rows)) + 16 * s->widest + 1024;
    if (s->h.kind == ED_BERT) floats += many * (three + wide + 2 * head + 4) + 4 * head;
    if (s->h.kind == ED_BILSTM) floats += many * 5 * four + four * inner + 5 * four;
    void *memory = floats > SIZE_MAX / 8 ? NULL : calloc((size_t)floats, sizeof(float));
    if (!memory) return 0;
    ed_work w = {(float *)memory, NULL, NULL, NULL};
    w.panel = ed_take(&w, 16 * s->widest), w.scales = ed_take(&w, rows), w.bytes = (uint8_t *)ed_take(&w, rows * s->widest / 4 + 4);
    float *x = ed_take(&w, rows * wide), *pooled = ed_take(&w, 4 * last), *spare = ed_take(&w, 4 * last);
    if (s->projection.values) {
        float *table = ed_take(&w, rows * narrow);
        for (size_t t = 0; t < n; t++) ed_row(&s->table, ids[t], 1, table + t * narrow);
        ED_(product)(&s->projection, table, narrow, n, x, wide, 0, &w);
    } else {
        for (size_t t = 0; t < n; t++) ed_row(&s->table, ids[t], s->weights ? s->weights[ids[t]] : 1, x + t * wide);
    }
    if (s->h.kind == ED_BERT) ED_(layers)(s, ids, x, n, w);
    if (s->h.kind == ED_BILSTM) {
        x = ED_(lstm)(s, x, n, &w), wide = ED_PAD(2 * s->h.inner);
        if (s->h.pooling == ED_LAST_TOKEN) /* of the direction that ends at the first token, that one */
            memcpy(x + (n - 1) * wide + s->h.inner, x + s->h.inner, (size_t)s->h.inner * sizeof *x);
    }
    ED_(pool)(x, n, wide, s->h.pooling, pooled);
    ED_(finish)(s, ids, n, pooled, spare, out, &w);
    free(memory);
    return 1;
}

#undef VF
#undef VI
#undef ED_LOAD
#undef ED_STORE
#undef ED_TO
#undef ED_LANE
#undef ED_ROWS
#undef ED_STEP
#undef ED_SHIFT
#undef ED_PASS
#undef ED_W
#undef ED_KERNEL
#undef ED_TARGET
#endif
