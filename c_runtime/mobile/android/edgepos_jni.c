/* The native methods of org.edgepos.Native. Texts are byte[] of UTF-8: JNI's own strings have another form of it. */
#include <jni.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "edgepos_mobile.h"

static epm_model *model_of(jlong handle) { return (epm_model *)(intptr_t)handle; }

static void throw_problem(JNIEnv *env, const char *problem) {
  jclass kind = (*env)->FindClass(env, "org/edgepos/EdgePosException");
  jmethodID make = kind ? (*env)->GetMethodID(env, kind, "<init>", "([B)V") : NULL;
  jsize n = (jsize)strlen(problem);
  jbyteArray text = make ? (*env)->NewByteArray(env, n) : NULL;
  if (!text) return; /* an exception of the machine's own is pending */
  (*env)->SetByteArrayRegion(env, text, 0, n, (const jbyte *)problem);
  jobject made = (*env)->NewObject(env, kind, make, text);
  if (made) (*env)->Throw(env, (jthrowable)made);
}

/* A copy of a byte[] with a zero behind it, to be freed; NULL with an exception. */
static char *copy_bytes(JNIEnv *env, jbyteArray array, size_t *n) {
  if (!array) {
    throw_problem(env, "a text is null");
    return NULL;
  }
  jsize size = (*env)->GetArrayLength(env, array);
  char *bytes = malloc((size_t)size + 1);
  if (!bytes) {
    throw_problem(env, "no memory for a text");
    return NULL;
  }
  (*env)->GetByteArrayRegion(env, array, 0, size, (jbyte *)bytes);
  bytes[size] = 0;
  *n = (size_t)size;
  return bytes;
}

JNIEXPORT jlong JNICALL Java_org_edgepos_Native_open(JNIEnv *env, jclass self, jbyteArray path, jint context, jint threads) {
  (void)self;
  char problem[EPM_PROBLEM];
  epm_model *model = NULL;
  size_t n;
  char *name = copy_bytes(env, path, &n);
  if (!name) return 0;
  if (strlen(name) != n)
    throw_problem(env, "the path has a zero byte");
  else if (epm_open(&model, name, context, threads, problem))
    throw_problem(env, problem);
  free(name);
  return (jlong)(intptr_t)model;
}

JNIEXPORT void JNICALL Java_org_edgepos_Native_close(JNIEnv *env, jclass self, jlong handle) {
  (void)env, (void)self;
  epm_close(model_of(handle));
}

JNIEXPORT void JNICALL Java_org_edgepos_Native_cancel(JNIEnv *env, jclass self, jlong handle) {
  (void)env, (void)self;
  epm_cancel(model_of(handle));
}

JNIEXPORT void JNICALL Java_org_edgepos_Native_reset(JNIEnv *env, jclass self, jlong handle) {
  (void)env, (void)self;
  epm_reset(model_of(handle));
}

typedef struct sink {
  JNIEnv *env;
  jobject object;
  jmethodID text;
} sink;

/* An exception that the app throws while it takes a piece ends the text and goes on to the caller of generate. */
static int on_text(void *user, const char *bytes, size_t n) {
  const sink *s = user;
  JNIEnv *env = s->env;
  jbyteArray piece = (*env)->NewByteArray(env, (jsize)n);
  if (!piece) return 1;
  (*env)->SetByteArrayRegion(env, piece, 0, (jsize)n, (const jbyte *)bytes);
  jboolean more = (*env)->CallBooleanMethod(env, s->object, s->text, piece);
  if ((*env)->ExceptionCheck(env)) return 1;
  (*env)->DeleteLocalRef(env, piece);
  return !more;
}

JNIEXPORT jint JNICALL Java_org_edgepos_Native_generate(JNIEnv *env, jclass self, jlong handle, jbyteArray prompt, jint most, jint temperature,
                                                        jint top_k, jint top_p, jlong seed, jobject object) {
  (void)self;
  char problem[EPM_PROBLEM];
  size_t n;
  int32_t reason = EPM_CANCELLED;
  if (!object) {
    throw_problem(env, "the sink is null");
    return reason;
  }
  sink s = {env, object, (*env)->GetMethodID(env, (*env)->GetObjectClass(env, object), "text", "([B)Z")};
  char *text = s.text ? copy_bytes(env, prompt, &n) : NULL;
  if (!text) return reason;
  epm_sampling how = {most, (uint32_t)temperature, top_k, (uint32_t)top_p, (uint64_t)seed};
  if (epm_generate(model_of(handle), text, n, &how, on_text, &s, &reason, problem)) throw_problem(env, problem);
  free(text);
  return reason;
}

JNIEXPORT jlongArray JNICALL Java_org_edgepos_Native_memory(JNIEnv *env, jclass self, jlong handle) {
  (void)self;
  epm_memory m;
  epm_memory_of(model_of(handle), &m);
  const jlong numbers[] = {(jlong)m.model_bytes, (jlong)m.arena_bytes, (jlong)m.kv_bytes_per_token, m.tokens, m.context};
  jsize n = sizeof numbers / sizeof *numbers;
  jlongArray array = (*env)->NewLongArray(env, n);
  if (array) (*env)->SetLongArrayRegion(env, array, 0, n, numbers);
  return array;
}

JNIEXPORT jlong JNICALL Java_org_edgepos_Native_selftest(JNIEnv *env, jclass self, jlong handle) {
  (void)self;
  char problem[EPM_PROBLEM];
  uint64_t digest = 0;
  if (epm_selftest(model_of(handle), &digest, problem)) throw_problem(env, problem);
  return (jlong)digest;
}
