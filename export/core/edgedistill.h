/*
 * A sentence encoder on a device: opens one file of a student, and embeds. C99 and C++, no library but libm.
 *
 *     const char *error;
 *     ed_student *s = ed_open(data, size, &error);  // keeps no copy: data must stay; NULL and an error where it is no student
 *     float *embedding = malloc(sizeof(float) * ed_size(s));
 *     error = ed_embed(s, text, strlen(text), ED_TEXT, embedding);  // NULL, or what is wrong
 *     ed_close(s);
 *
 * An opened student is never changed: threads share it. A call takes its memory and gives it back; it calls nothing but
 * malloc, free, memory functions and math. `edgedistill export NAME --core DIR` writes the file; README.md describes it.
 */
#ifndef EDGEDISTILL_H
#define EDGEDISTILL_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct ed_student ed_student;
enum { ED_TEXT, ED_QUERY, ED_DOCUMENT, ED_ROLES }; /* what a text is: which prompt is put before it */
enum { ED_VERSION = 6, ED_OLDEST = 5 };            /* of the file's format */

/* data: the file's bytes, 4-byte aligned, as malloc and mmap return them. */
ed_student *ed_open(const void *data, size_t size, const char **error);
void ed_close(ed_student *s);

/* What the file says of its student, as JSON without a zero behind it: name, precision, languages, golden (texts), space. */
const char *ed_about(const ed_student *s, size_t *size);

/* Floats of an embedding; of a classifier, its labels. */
size_t ed_size(const ed_student *s);
size_t ed_max_tokens(const ed_student *s);

/* A classifier's label, without a zero behind it; NULL where it has fewer. */
const char *ed_label(const ed_student *s, size_t index, size_t *size);

/* The dimensions that an embedding may be cut to, the largest first; 0 behind the last. */
size_t ed_dims(const ed_student *s, size_t index);

/* The token ids of a text in UTF-8, with its prompt and special tokens, truncated: into ed_max_tokens places. */
const char *ed_tokenize(const ed_student *s, const char *text, size_t size, int role, uint32_t *ids, size_t *count);

/* The embedding, of unit length, into ed_size places; of a classifier, its logits. Returns NULL, or what is wrong. */
const char *ed_embed(const ed_student *s, const char *text, size_t size, int role, float *embedding);

/* The same of token ids, as ed_tokenize returns them. */
const char *ed_embed_ids(const ed_student *s, const uint32_t *ids, size_t count, float *embedding);

/* Cut an embedding to its first dims, of unit length again. */
void ed_cut(float *embedding, size_t dims);

/* An embedding of dims dimensions in one byte each, or in one bit (dims / 8 bytes, the first dimension in the highest bit). */
void ed_int8(const ed_student *s, const float *embedding, size_t dims, int8_t *bytes);
void ed_bits(const ed_student *s, const float *embedding, size_t dims, uint8_t *bits);

/* The golden texts of the file: `worst` is the lowest cosine (of a classifier: 1 − the largest difference of a probability),
   `least` what the file asks for. Returns NULL, or what is wrong, as where token ids differ. */
const char *ed_check(const ed_student *s, double *worst, double *least);

/* Which instructions run: "scalar", "sse2", "avx2", "avxvnni", "avx512vnni", "neon", "dotprod", "simd128". */
const char *ed_instructions(void);

#ifdef __cplusplus
}
#endif
#endif
