/* What the C code needs of the compiler, the operating system and the processor. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11) /* which know AMX */
#define HAVE_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#if !defined(__clang__) /* gcc declares the intrinsic for every target */
#define HAVE_DOTPROD
#define DOTPROD "arch=armv8.2-a+dotprod"
#elif defined(__ARM_FEATURE_DOTPROD)
#define HAVE_DOTPROD
#define DOTPROD "dotprod"
#endif
#endif
#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#define THREADS omp_get_num_threads()
#else
#define THREAD 0
#define THREADS 1
#endif

enum { LANES = 16 }; /* decode.c's sums have 16 lanes on every instruction set, so that they add in the same order */
enum { MOST_VECTORS = 4 }; /* that `exponentiate` computes together */

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

/* A vector of the lanes i, j, k, l of a and b, of which b's are 4 to 7. */
#if defined(__clang__)
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (i32x4){i, j, k, l})
#endif

/* Functions between BEGIN_TARGET(text) and END_TARGET are compiled for the instruction sets in the text. */
#if defined(__clang__)
#define BEGIN_TARGET(text) PRAGMA(clang attribute push(__attribute__((target(text))), apply_to = function))
#define END_TARGET PRAGMA(clang attribute pop)
#else
#define BEGIN_TARGET(text) PRAGMA(GCC push_options) PRAGMA(GCC target(text))
#define END_TARGET PRAGMA(GCC pop_options)
#endif
#define PRAGMA(...) _Pragma(#__VA_ARGS__)

#if defined(HAVE_AMX)
/* Whether the processor has AMX for bfloat16, and Linux lets this process use it, which it does not without being asked. */
static inline int has_amx(void) {
    enum { BFLOAT16_TILES = 22, TILE_REGISTERS = 24, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           d >> BFLOAT16_TILES & 1 && d >> TILE_REGISTERS & 1 && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
#endif
