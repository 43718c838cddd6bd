/*
 * The core for WebAssembly: edgedistill.c with what it takes from a C library, and nothing from outside. `make` beside this
 * builds edgedistill.wasm and, for engines that have relaxed SIMD, edgedistill-relaxed.wasm; edgedistill.js calls one of them.
 *
 * Memory: malloc goes up from the end of the data, free gives back what is highest. A student's parts stay as long as it does;
 * a call gives back what it takes in the other order, so nothing is lost.
 */
#include <stddef.h>
#include <stdint.h>

#define PAGE 65536

extern uint8_t __heap_base;
static size_t top;

typedef struct { size_t below, size; } block; /* in front of what malloc returns; below: the block before, 0 for none; size 0: given back */
static size_t last;

void *malloc(size_t size) {
    size_t start = ((top ? top : (size_t)&__heap_base) + sizeof(block) + 63) & ~(size_t)63, end = start + size;
    size_t pages = __builtin_wasm_memory_size(0);
    if (end < start || end > 0xFFFF0000u) return NULL;
    if (end > pages * PAGE && __builtin_wasm_memory_grow(0, (end - pages * PAGE + PAGE - 1) / PAGE) == (size_t)-1) return NULL;
    block *b = (block *)(start - sizeof(block));
    b->below = last, b->size = size + 1;
    last = start, top = end;
    return (void *)start;
}

void free(void *p) {
    if (!p) return;
    ((block *)p - 1)->size = 0;
    while (last && !((block *)last - 1)->size) last = ((block *)last - 1)->below;
    top = last ? last + ((block *)last - 1)->size - 1 : 0;
}

void *memset(void *to, int value, size_t size) { return __builtin_memset(to, value, size); } /* instructions of their own */
void *memcpy(void *to, const void *from, size_t size) { return __builtin_memcpy(to, from, size); }

int memcmp(const void *a, const void *b, size_t size) {
    const uint8_t *x = (const uint8_t *)a, *y = (const uint8_t *)b;
    for (; size--; x++, y++) if (*x != *y) return *x - *y;
    return 0;
}

static size_t strlen(const char *text) {
    size_t size = 0;
    while (text[size]) size++;
    return size;
}

static void *calloc(size_t count, size_t size) {
    size_t all = count * size;
    void *p = size && all / size != count ? NULL : malloc(all);
    return p ? memset(p, 0, all) : NULL;
}

/* e^x of probabilities alone, where x is at most 0. */
static double exp(double x) {
    double sum = 1, part = 1, small = x / 1024;
    if (x < -700) return 0;
    for (int i = 1; i < 12; i++) sum += part *= small / i;
    for (int i = 0; i < 10; i++) sum *= sum;
    return sum;
}

#define sqrt __builtin_sqrt
#define sqrtf __builtin_sqrtf
#define fabs __builtin_fabs
#define fabsf __builtin_fabsf
#define rint __builtin_rint
#define signbit __builtin_signbit
#define fmin(a, b) ((a) < (b) ? (a) : (b))
#define fmax(a, b) ((a) > (b) ? (a) : (b))
#define ED_FREESTANDING
#include "edgedistill.c"
