/*
 * A student on the hardware it is for: cc -O2 -static bench.c edgedistill.c -o bench -lm
 *
 *     ./bench student.bin [SECONDS [QUERY_SECONDS WARMUPS CHECKED COUNT < texts]]
 *
 * Prints the answer of a runner as bench/README.md describes it, with one thread: the times of COUNT texts one by one, texts per
 * second, a text's time by its tokens, the time from here to the first embedding, the memory, how the golden texts compare, and the
 * embeddings of CHECKED texts that stand before the others. A text stands behind its number of bytes and a line feed; without
 * texts, it is a sentence of this file. Ends with 1 where golden texts do not reach what the file asks for.
 */
#define _POSIX_C_SOURCE 200112L
#include "edgedistill.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MOST_RUNS = 1 << 16, LEAST_RUNS = 5, LONGEST = 256 };
typedef struct { char *text; size_t size; } sample;

static const char SENTENCE[] = "the old man carries a wooden chair along the river in the morning, and our neighbour finds her letter ";
static double runs[MOST_RUNS];
static const char *error; /* the first thing that is wrong */
static ed_student *student;
static float *row;
static uint32_t *ids;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static long peak_bytes(void) {
    struct rusage usage;
    memset(&usage, 0, sizeof usage), getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * 1024;
}

static void fail(const char *what) { if (!error) error = what; }

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    long found = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    void *data = found > 0 ? malloc((size_t)found) : NULL;
    if (data) rewind(file), *size = fread(data, 1, (size_t)found, file);
    if (file) fclose(file);
    return data;
}

static sample read_text(void) {
    sample s = {NULL, 0};
    if (scanf("%zu", &s.size) == 1 && getchar() == '\n' && s.size < 1 << 30) s.text = (char *)malloc(s.size + 1);
    if (!s.text || fread(s.text, 1, s.size, stdin) != s.size) fail("the texts on stdin are cut short");
    return s;
}

static size_t tokenize(const char *text, size_t size) {
    size_t count = 0;
    int role = ed_dims(student, 0) ? ED_QUERY : ED_TEXT; /* a classifier has no queries */
    if (!error) error = ed_tokenize(student, text, size, role, ids, &count);
    return count;
}

static size_t embed(sample s) {
    size_t count = tokenize(s.text, s.size);
    if (!error) error = ed_embed_ids(student, ids, count, row);
    return count;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

/* The median milliseconds of a call on the text or, with tokens, on its ids. */
static double median_ms(sample s, size_t tokens, double seconds) {
    size_t done = 0;
    for (double end = now_ms() + 1e3 * seconds; !error && done < MOST_RUNS && (done < LEAST_RUNS || now_ms() < end); done++) {
        double before = now_ms();
        if (tokens) error = ed_embed_ids(student, ids, tokens, row);
        else tokenize(s.text, s.size);
        runs[done] = now_ms() - before;
    }
    return qsort(runs, done, sizeof *runs, by_size), runs[done / 2];
}

/* A text of as many words as have `tokens` at most, timed for each of 8, 16, … tokens. */
static void by_length(double seconds) {
    static char words[LONGEST * sizeof SENTENCE];
    size_t end = 0, next, count;
    for (size_t at = 0; at < LONGEST; at++) strcpy(words + at * (sizeof SENTENCE - 1), SENTENCE);
    for (size_t tokens = 8; tokens <= LONGEST && tokens <= ed_max_tokens(student); tokens *= 2) {
        while (next = end + 1 + strcspn(words + end + 1, " "), tokenize(words, next) <= tokens && !error && next - end < 32 && next + 32 < sizeof words) end = next;
        sample s = {words, end};
        count = tokenize(words, end);
        double tokenizing = median_ms(s, 0, seconds / 12), graph = median_ms(s, count, seconds / 12);
        printf("%s\"%zu\": {\"tokens\": %zu, \"tokenize_ms\": %.4f, \"graph_ms\": %.4f}", tokens > 8 ? ", " : "", tokens, count, tokenizing, graph);
    }
}

int main(int argc, char **argv) {
    double start = now_ms(), seconds = argc > 2 ? atof(argv[2]) : 1, query_seconds = argc > 3 ? atof(argv[3]) : seconds, worst = -1, least = 1;
    size_t size = 0, warmups = argc > 4 ? (size_t)atol(argv[4]) : 8, checked = argc > 5 ? (size_t)atol(argv[5]) : 0, count = argc > 6 ? (size_t)atol(argv[6]) : 0;
    void *data = argc > 1 ? read_file(argv[1], &size) : NULL;
    student = data ? ed_open(data, size, &error) : NULL;
    if (!student) return fprintf(stderr, "%s: %s\n", argc > 1 ? argv[1] : "bench", error ? error : "not readable; give student.bin"), 2;
    sample own = {(char *)(size_t)SENTENCE, sizeof SENTENCE - 1}, *texts = (sample *)calloc(checked + count + 1, sizeof *texts);
    row = (float *)malloc(ed_size(student) * sizeof *row), ids = (uint32_t *)malloc(ed_max_tokens(student) * sizeof *ids);
    if (!texts || !row || !ids) return fprintf(stderr, "not enough memory\n"), 2;
    embed(own);
    printf("{\"start_ms\": %.4f, \"loaded_rss_bytes\": %ld, \"version\": \"bench.c, %s\", \"threads\": 1, \"embeddings\": [", now_ms() - start, peak_bytes(), ed_instructions());
    texts[checked] = own;
    for (size_t at = 0; !error && at < checked + count; at++) texts[at] = read_text();
    for (size_t at = 0; !error && at < checked; at++) {
        embed(texts[at]);
        for (size_t j = 0; j < ed_size(student); j++) printf("%s%.6g", j ? ", " : at ? "], [" : "[", row[j]);
    }
    texts += checked, count += !count;
    size_t done = 0, tokens = 0, timed = 0;
    for (size_t at = 0; !error && at < warmups; at++) embed(texts[at % count]);
    for (double end = now_ms() + 1e3 * query_seconds; !error && done < MOST_RUNS && (done < count || now_ms() < end); done++) {
        double before = now_ms();
        tokens += embed(texts[done % count]), runs[done] = now_ms() - before;
    }
    printf("%s], \"tokens_mean\": %.4f, \"single_ms\": [", checked ? "]" : "", (double)tokens / (double)done);
    for (size_t at = 0; at < done; at++) printf("%s%.4f", at ? ", " : "", runs[at] > 1e-4 ? runs[at] : 1e-4);
    double before = now_ms(), spent = 0;
    for (; !error && (!timed || spent < 1e3 * seconds); timed++) embed(texts[timed % count]), spent = now_ms() - before;
    printf("], \"texts_s\": {\"1\": %.4f}, \"by_length\": {", 1e3 * (double)timed / spent);
    by_length(seconds);
    const char *wrong = error ? NULL : ed_check(student, &worst, &least);
    if (wrong) fprintf(stderr, "golden texts: %s\n", wrong), worst = -1;
    printf("}, \"peak_rss_bytes\": %ld, \"golden\": {\"worst\": %.6f, \"least\": %.6f}}\n", peak_bytes(), worst, least);
    if (error) fprintf(stderr, "%s\n", error);
    return error ? 2 : worst < least;
}
