/* Between Student.java and the core: arrays across, errors as IllegalArgumentException. */
#include "edgedistill.h"
#include <jni.h>
#include <stdlib.h>

#define NATIVE(result, name) JNIEXPORT result JNICALL Java_dev_edgedistill_Student_##name
#define STUDENT ((const ed_student *)(intptr_t)student)

static void raise(JNIEnv *env, const char *error) {
    jclass kind = (*env)->FindClass(env, "java/lang/IllegalArgumentException");
    if (kind) (*env)->ThrowNew(env, kind, error);
}

NATIVE(jlong, open)(JNIEnv *env, jclass type, jobject data, jlong size) {
    const char *error;
    ed_student *s = ed_open((*env)->GetDirectBufferAddress(env, data), (size_t)size, &error);
    if (!s) raise(env, error);
    return (void)type, (jlong)(intptr_t)s;
}

NATIVE(jfloatArray, embed)(JNIEnv *env, jclass type, jlong student, jbyteArray text, jint role) {
    size_t size = ed_size(STUDENT);
    float *row = malloc(size * sizeof *row);
    jbyte *bytes = (*env)->GetByteArrayElements(env, text, NULL);
    jfloatArray found = (*env)->NewFloatArray(env, (jsize)size);
    const char *error = row && bytes && found ? NULL : "not enough memory";
    if (!error) error = ed_embed(STUDENT, (const char *)bytes, (size_t)(*env)->GetArrayLength(env, text), role, row);
    if (bytes) (*env)->ReleaseByteArrayElements(env, text, bytes, JNI_ABORT);
    if (!error) (*env)->SetFloatArrayRegion(env, found, 0, (jsize)size, row);
    free(row);
    if (error) raise(env, error);
    return (void)type, found;
}

NATIVE(jintArray, tokenize)(JNIEnv *env, jclass type, jlong student, jbyteArray text, jint role) {
    size_t count = 0;
    uint32_t *ids = malloc(ed_max_tokens(STUDENT) * sizeof *ids);
    jbyte *bytes = (*env)->GetByteArrayElements(env, text, NULL);
    const char *error = ids && bytes ? NULL : "not enough memory";
    if (!error) error = ed_tokenize(STUDENT, (const char *)bytes, (size_t)(*env)->GetArrayLength(env, text), role, ids, &count);
    if (bytes) (*env)->ReleaseByteArrayElements(env, text, bytes, JNI_ABORT);
    jintArray found = error ? NULL : (*env)->NewIntArray(env, (jsize)count);
    if (found) (*env)->SetIntArrayRegion(env, found, 0, (jsize)count, (const jint *)ids);
    free(ids);
    if (error) raise(env, error);
    return (void)type, found;
}

NATIVE(jdoubleArray, check)(JNIEnv *env, jclass type, jlong student) {
    jdouble both[2];
    const char *error = ed_check(STUDENT, both, both + 1);
    jdoubleArray found = error ? NULL : (*env)->NewDoubleArray(env, 2);
    if (found) (*env)->SetDoubleArrayRegion(env, found, 0, 2, both);
    if (error) raise(env, error);
    return (void)type, found;
}

NATIVE(void, close)(JNIEnv *env, jclass type, jlong student) { (void)env, (void)type, ed_close((ed_student *)(intptr_t)student); }
