/* Chooses the kernels for the instruction set of this processor. */
#include "core.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#if defined(HAS_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

void asyncrl_tile_product(Matrix, Matrix, int64_t, int64_t, int64_t, const float *, Result, float *);

/* The product by AMX; NULL if this processor has no tiles, or the system does not let this process use them. */
EXPORT TileProduct asyncrl_tiles(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, AVX512_BF16 = 1 << 5, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl")) return 0;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & AVX512_BF16)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE)) return 0;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 ? asyncrl_tile_product : 0;
}
#else
EXPORT TileProduct asyncrl_tiles(void) { return 0; }
#endif

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
