/* The golden texts of a student's file, without what only POSIX has: golden STUDENT. */
#include "edgedistill.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    const char *error = "not readable";
    double worst = 0, least = 1;
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!file || fseek(file, 0, SEEK_END)) return puts(error), 2;
    size_t size = (size_t)ftell(file);
    void *data = malloc(size);
    rewind(file);
    ed_student *student = data && fread(data, 1, size, file) == size ? ed_open(data, size, &error) : NULL;
    if (student) error = ed_check(student, &worst, &least);
    printf("%s %.6f %.6f %s\n", error ? error : "OK", worst, least, ed_instructions());
    return error || worst < least;
}
