/* driver ids|all FILE…: what student.h makes of the texts on stdin, as tests/runners/test_static.py sends and reads them. */
#include "student.h"
#include <stdio.h>

static uint8_t *whole(FILE *file, size_t *size) {
    uint8_t *data = NULL;
    size_t got, room = 0;
    *size = 0;
    do {
        if (*size == room) data = realloc(data, room = 2 * room + 4096);
        got = fread(data + *size, 1, room - *size, file);
        *size += got;
    } while (got);
    fclose(file);
    return realloc(data, *size ? *size : 1); /* no byte more, so that a sanitizer sees the first one behind it */
}

static void run(const student *s, const uint8_t *texts, int with_embeddings) {
    uint32_t *ids = malloc((size_t)s->max_tokens * sizeof *ids);
    float *embedding = malloc((size_t)s->dims * sizeof *embedding);
    uint32_t left = student_u32(texts);
    for (texts += 4; left; left--) {
        uint32_t role = student_u32(texts), size = student_u32(texts + 4);
        char *text = malloc(size); /* its own, and no byte more */
        size_t count = 0;
        if (size) memcpy(text, texts + 8, size);
        const char *error = student_tokenize(s, text, size, (int)role, ids, &count);
        if (!error && with_embeddings) error = student_encode(s, text, size, (int)role, embedding);
        if (error) printf("error %s\n", error);
        for (size_t at = 0; !error && at < count; at++) printf("%u ", ids[at]);
        if (!error) printf("|");
        for (int32_t at = 0; !error && with_embeddings && at < s->dims; at++) printf(" %.9g", embedding[at]);
        if (!error) printf("\n");
        free(text);
        texts += 8 + size;
    }
    free(ids), free(embedding);
}

int main(int count, char **arguments) {
    size_t size;
    uint8_t *texts = whole(stdin, &size);
    for (int at = 2; at < count; at++) {
        FILE *file = fopen(arguments[at], "rb");
        if (!file) return 1;
        uint8_t *data = whole(file, &size);
        const char *error;
        double worst = 0;
        student *s = student_open(data, size, &error);
        if (s) error = student_check(s, &worst);
        if (error) printf("error %s\n", error);
        else printf("open %.9f\n", worst), run(s, texts, !strcmp(arguments[1], "all"));
        student_close(s);
        free(data);
    }
    free(texts);
    return 0;
}
