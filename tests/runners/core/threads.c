/* Eight threads embed with one student: threads FILE prints whether all have the first one's embeddings. */
#include "edgedistill.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, TEXTS = 20 };
static ed_student *student;

static void *embed(void *rows) {
    char text[64];
    for (int at = 0; at < TEXTS; at++) {
        snprintf(text, sizeof text, "the cat eats %d red apples", at);
        if (ed_embed(student, text, strlen(text), ED_TEXT, (float *)rows + (size_t)at * ed_size(student))) return NULL;
    }
    return rows;
}

int main(int argc, char **argv) {
    static _Alignas(64) char data[1 << 22];
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    size_t size = file ? fread(data, 1, sizeof data, file) : 0;
    const char *error;
    pthread_t thread[THREADS];
    void *found;
    if (!(student = ed_open(data, size, &error))) return puts(error), 2;
    size_t floats = TEXTS * ed_size(student);
    float *rows = (float *)calloc(THREADS * floats, sizeof *rows);
    int same = rows != NULL;
    for (size_t at = 0; at < THREADS; at++) pthread_create(thread + at, NULL, embed, rows + at * floats);
    for (size_t at = 0; at < THREADS; at++) {
        pthread_join(thread[at], &found);
        same &= found && !memcmp(rows, rows + at * floats, floats * sizeof *rows);
    }
    ed_close(student), fclose(file), free(rows);
    return puts(same ? "the same" : "different"), !same;
}
