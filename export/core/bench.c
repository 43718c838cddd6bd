/*
 * A student on the hardware it is for: cc -O2 -static bench.c edgedistill.c -o bench -lm; ./bench student.bin [SECONDS]
 *
 * Prints JSON: the instructions in use, the time to open and to the first embedding, for 4 to max_tokens tokens the median and the
 * 95th percentile of a text's time with one thread, the peak memory, and how the golden texts compare. Ends with 1 where they do
 * not reach what the file asks for.
 */
#define _POSIX_C_SOURCE 200112L
#include "edgedistill.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MOST_RUNS = 2000 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    long found = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    void *data = found > 0 ? malloc((size_t)found) : NULL;
    if (data) rewind(file), *size = fread(data, 1, (size_t)found, file);
    if (file) fclose(file);
    return data;
}

int main(int argc, char **argv) {
    static const char text[] = "the old man carries a wooden chair along the river in the morning, and our neighbour finds her letter ";
    static double runs[MOST_RUNS];
    const char *error = NULL;
    double start = now_ms(), opened, worst = 0, least = 1, seconds = argc > 2 ? atof(argv[2]) : 1;
    size_t size = 0, count = 0;
    void *data = argc > 1 ? read_file(argv[1], &size) : NULL;
    ed_student *s = data ? ed_open(data, size, &error) : NULL;
    if (!s) return fprintf(stderr, "%s: %s\n", argc > 1 ? argv[1] : "bench", error ? error : "not readable; give student.bin"), 2;
    float *row = malloc(ed_size(s) * sizeof *row);
    uint32_t *ids = malloc(ed_max_tokens(s) * sizeof *ids);
    char *longest = calloc(ed_max_tokens(s) + 1, sizeof text);
    if (!row || !ids || !longest) return fprintf(stderr, "not enough memory\n"), 2;
    opened = now_ms();
    error = ed_embed(s, text, sizeof text - 1, ED_TEXT, row);
    printf("{\"instructions\": \"%s\", \"size_bytes\": %zu, \"open_ms\": %.3f, \"first_ms\": %.3f, \"latency\": [", ed_instructions(), size, opened - start, now_ms() - opened);
    for (size_t at = 0; at < ed_max_tokens(s); at++) strcpy(longest + at * (sizeof text - 1), text);
    if (!error) error = ed_tokenize(s, longest, strlen(longest), ED_TEXT, ids, &count);
    for (size_t tokens = 4; !error && tokens <= count; tokens = tokens < count && 2 * tokens > count ? count : 2 * tokens) {
        size_t done = 0;
        for (double end = now_ms() + 1e3 * seconds; !error && (done < 5 || (done < MOST_RUNS && now_ms() < end)); done++) {
            double before = now_ms();
            error = ed_embed_ids(s, ids, tokens, row), runs[done] = now_ms() - before;
        }
        qsort(runs, done, sizeof *runs, by_size);
        printf("%s{\"tokens\": %zu, \"runs\": %zu, \"p50_ms\": %.4f, \"p95_ms\": %.4f}", tokens > 4 ? ", " : "", tokens, done, runs[done / 2], runs[done * 95 / 100]);
    }
    if (!error) error = ed_check(s, &worst, &least);
    struct rusage usage;
    memset(&usage, 0, sizeof usage), getrusage(RUSAGE_SELF, &usage);
    printf("], \"peak_kb\": %ld, \"worst\": %.6f, \"least\": %.6f}\n", usage.ru_maxrss, worst, least);
    if (error) fprintf(stderr, "%s\n", error);
    ed_close(s), free(data), free(row), free(ids), free(longest);
    return error ? 2 : worst < least;
}
