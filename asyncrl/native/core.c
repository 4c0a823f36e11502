/* Chooses the kernels for the instruction set of this processor; reads and writes words that processes share. */
#include "core.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Words that processes share (buffers/words.py): the fences keep all loads and stores around an access in order. */
EXPORT int64_t asyncrl_load_word(const int64_t *word) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    int64_t value = __atomic_load_n(word, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return value;
}

EXPORT void asyncrl_store_word(int64_t *word, int64_t value) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#if defined(__x86_64__)
extern const Kernels asyncrl_kernels_avx512, asyncrl_kernels_avx2, asyncrl_kernels_sse2;

/* `name`: the largest set to use, or NULL. */
EXPORT const Kernels *asyncrl_kernels(const char *name) {
    __builtin_cpu_init();
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (has_avx512 && (!name || !strcmp(name, "avx512"))) return &asyncrl_kernels_avx512;
    if (has_avx2 && (!name || strcmp(name, "sse2"))) return &asyncrl_kernels_avx2;
    return &asyncrl_kernels_sse2;
}
#else
extern const Kernels asyncrl_kernels_generic;

EXPORT const Kernels *asyncrl_kernels(const char *name) {
    (void)name;
    return &asyncrl_kernels_generic;
}
#endif
