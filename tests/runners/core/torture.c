/* What no student, text or shortage of memory may do: run with sanitizers, this ends with 0. torture FILE TEXTS SEED COUNT; TEXTS
   are separated by zeros. Also libFuzzer's target, with -DFUZZ: a file, a zero byte's place, a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long left = -1, held; /* allocations until one fails, and those not given back */
static void *counted(void *p) { return held += p != NULL, p; }
static int fails(void) { return left >= 0 && left-- == 0; }
static void *test_malloc(size_t size) { return fails() ? NULL : counted(malloc(size ? size : 1)); }
static void *test_calloc(size_t count, size_t size) { return fails() || (size && count > ((size_t)1 << 31) / size) ? NULL : counted(calloc(count + 1, size)); }
static void test_free(void *p) { held -= p != NULL, free(p); }
#define malloc test_malloc
#define calloc test_calloc
#define free test_free
#include "edgedistill.c"
#undef malloc
#undef calloc
#undef free

static void stamp(uint8_t *data, size_t size) {
    uint32_t sum = ed_checksum(data + ED_START, size - ED_START);
    memcpy(data + 12, &sum, 4);
}

/* Open, embed, in fewer bytes too, check if `golden` (32 texts more); 1 where a text has an embedding. */
static int once(const uint8_t *data, size_t size, const uint8_t *text, size_t length, int golden) {
    const char *error;
    double worst, least;
    ed_student *s = ed_open(data, size, &error);
    if (!s) return 0;
    float *embedding = (float *)malloc(ed_size(s) * sizeof *embedding);
    int good = 1;
    for (int role = 0; role < ED_ROLES; role++) good &= !ed_embed(s, (const char *)text, length, role, embedding);
    uint8_t *compact = good ? (uint8_t *)malloc(ed_size(s)) : NULL;
    if (compact) ed_int8(s, embedding, ed_size(s), (int8_t *)compact), ed_bits(s, embedding, ed_size(s) / 2, compact);
    if (good && golden && ed_max_tokens(s) < 4096) ed_check(s, &worst, &least);
    free(compact), free(embedding);
    return ed_close(s), good;
}

#ifdef FUZZ
static uint8_t *base;
static size_t base_size;
static int texts_only; /* of a large student, which takes long to copy */

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *path = getenv("STUDENT");
    FILE *file = fopen(path ? path : "student.bin", "rb");
    (void)argc, (void)argv, texts_only = getenv("TEXTS_ONLY") != NULL;
    if (!file) abort();
    fseek(file, 0, SEEK_END), base_size = (size_t)ftell(file), rewind(file);
    base = (uint8_t *)malloc(base_size);
    if (fread(base, 1, base_size, file) != base_size) abort();
    return fclose(file);
}

/* Even inputs are texts; odd ones are changes to the file: a place in 3 bytes, and what to write there in 4. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ed_student *sound;
    const char *error;
    float embedding[4096];
    if (!sound) sound = ed_open(base, base_size, &error);
    if (!sound || ed_size(sound) > 4096) abort();
    if (size < 1) return 0;
    if (texts_only || data[0] % 2 == 0) return ed_embed(sound, (const char *)data + 1, size - 1, data[0] / 2 % 3, embedding), 0;
    uint8_t *changed = (uint8_t *)malloc(base_size);
    memcpy(changed, base, base_size);
    for (size_t at = 1; at + 7 <= size; at += 7) {
        size_t place = ((size_t)data[at] | (size_t)data[at + 1] << 8 | (size_t)data[at + 2] << 16) * 4 % (base_size - 4);
        memcpy(changed + (place < ED_START ? ED_START : place), data + at + 3, 4);
    }
    stamp(changed, base_size), once(changed, base_size, (const uint8_t *)"a cat \xC3\xA9 2", 10, 1), free(changed);
    return held > 100 ? abort(), 0 : 0;
}
#else
static uint32_t seed;
static uint32_t drawn(uint32_t below) { seed = seed * 1664525u + 1013904223u; return (uint32_t)(((uint64_t)(seed >> 4) * below) >> 28); }

static uint8_t *read_all(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) exit(2);
    fseek(file, 0, SEEK_END), *size = (size_t)ftell(file), rewind(file);
    uint8_t *data = (uint8_t *)malloc(*size + 1);
    if (fread(data, 1, *size, file) != *size) exit(2);
    return fclose(file), data;
}

int main(int argc, char **argv) {
    size_t size, length;
    if (argc != 5) return 2;
    uint8_t *data = read_all(argv[1], &size), *texts = read_all(argv[2], &length), *changed = (uint8_t *)malloc(size);
    int opened = 0;
    seed = (uint32_t)atoi(argv[3]);
    for (size_t at = 0, end; at < length; at = end + 1) {
        for (end = at; end < length && texts[end]; end++) {}
        once(data, size, texts + at, end - at, 0);
    }
    once(data, size, texts, length, 1); /* zeros inside */
    if (held) return printf("%ld allocations are not given back\n", held), 1;
    for (long at = 0, done = 0; !done; at++) { /* every allocation fails once */
        left = at, done = once(data, size, (const uint8_t *)"a cat eats", 10, 1), left = -1;
        if (held) return printf("allocation %ld fails: %ld are not given back\n", at, held), 1;
        if (at > 1000) return puts("never enough memory"), 1;
    }
    for (int i = 0; i < atoi(argv[4]); i++) { /* changes behind a right checksum */
        memcpy(changed, data, size);
        size_t cut = i % 5 ? size : ED_START + drawn((uint32_t)size - ED_START);
        for (uint32_t n = drawn(4) + 1; n; n--) {
            size_t place = (size_t)ED_START + (drawn(2) ? drawn(96) : drawn((uint32_t)size - ED_START - 4)) / 4 * 4;
            uint32_t value = drawn(3) ? drawn(70) : drawn(1 << 28) * 16 + drawn(16);
            memcpy(changed + place, &value, 4);
        }
        if (drawn(2)) { int32_t whole = (int32_t)cut; memcpy(changed + ED_START, &whole, 4); }
        uint8_t *exact = (uint8_t *)malloc(cut); /* what is read behind it is found */
        memcpy(exact, changed, cut), stamp(exact, cut);
        opened += once(exact, cut, (const uint8_t *)"a cat \xC3\xA9 2", 10, i % 4 == 0);
        free(exact);
        if (held) return printf("change %d: %ld allocations are not given back\n", i, held), 1;
    }
    free(data), free(texts), free(changed);
    return printf("%d of %s changed files were opened\n", opened, argv[4]), 0;
}
#endif
