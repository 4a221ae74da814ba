/* Three operations of a training step on a CPU in bfloat16: GELU, the softmax of causal attention, and the cross entropy
 * with its gradient. PyTorch needs several passes over memory for the last two, and computes the first more slowly.
 *
 * Matrix products, which PyTorch computes at about the processor's peak, are half of a small model's step; these
 * operations were a quarter of it. minigpt/native/operations.py calls these functions through ctypes. The arithmetic is in
 * training_kernels.h. Shapes are in C order; `threads` is the number of OpenMP threads.
 */

#include "platform.h"

enum { CHUNK = 4096, QUERIES = 16 }; /* numbers or rows that a thread computes at once */

typedef struct {
    void (*gelu)(uint16_t *, const uint16_t *, int64_t);
    void (*gelu_gradient)(uint16_t *, const uint16_t *, const uint16_t *, int64_t);
    void (*softmax)(uint16_t *, int64_t, int64_t, float, float *);
    void (*softmax_gradient)(uint16_t *, const uint16_t *, const uint16_t *, int64_t, int64_t, float);
    void (*cross_entropy)(uint16_t *, const uint16_t *, int64_t, int64_t, float, float *, float *, float *);
} Kernels;

#define ISA plain
#define PARTS 4
#include "training_kernels.h"

#if defined(__x86_64__)
BEGIN_TARGET("avx2,fma")
#define ISA avx2
#define PARTS 2
#include "training_kernels.h"
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")
#define ISA avx512
#define PARTS 1
#include "training_kernels.h"
END_TARGET
#endif

static const Kernels *kernels = &kernels_plain;

/* Selects an instruction set that minigpt_use has returned. Those without kernels of their own here use plain C. */
void minigpt_training_use(const char *name) {
    kernels = &kernels_plain;
#if defined(__x86_64__)
    if (!strcmp(name, "avx2")) kernels = &kernels_avx2;
    if (!strcmp(name, "avx512-vnni")) kernels = &kernels_avx512;
#else
    (void)name;
#endif
}

/* Whether the functions below use several threads. */
int minigpt_has_openmp(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

/* y = GELU(x) for n numbers. */
void minigpt_gelu(uint16_t *y, const uint16_t *x, int64_t n, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i += CHUNK) kernels->gelu(y + i, x + i, n - i < CHUNK ? n - i : CHUNK);
}

/* dx = dy GELU'(x) for n numbers. */
void minigpt_gelu_gradient(uint16_t *dx, const uint16_t *dy, const uint16_t *x, int64_t n, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i += CHUNK)
        kernels->gelu_gradient(dx + i, dy + i, x + i, n - i < CHUNK ? n - i : CHUNK);
}

/* The attention weights softmax(scale scores), in place, (heads, length, length): query t attends to keys 0 to t, and
 * the weights of later keys are 0. `buffer` has room for `threads` x (length rounded up to 16) floats. */
void minigpt_causal_softmax(uint16_t *scores, int64_t heads, int64_t length, float scale, float *buffer, int threads) {
    int64_t padded = (length + LANES - 1) / LANES * LANES;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static, QUERIES)
    for (int64_t row = 0; row < heads * length; row++)
        kernels->softmax(scores + row * length, row % length + 1, length, scale, buffer + THREAD * padded);
}

/* The gradient of the scores, (heads, length, length), from that of the weights. */
void minigpt_causal_softmax_gradient(
    uint16_t *scores, const uint16_t *gradient, const uint16_t *weights, int64_t heads, int64_t length, float scale,
    int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static, QUERIES)
    for (int64_t row = 0; row < heads * length; row++) {
        int64_t first = row * length;
        kernels->softmax_gradient(
            scores + first, gradient + first, weights + first, row % length + 1, length, scale);
    }
}

/* Overwrites the first `vocab_size` logits of each row with the gradient of the row's cross entropy, which is losses[r] +
 * ln(totals[r]). With a `teacher`, whose distribution has this `weight` in the targets. A row of logits, and of the
 * teacher's, begins `stride` numbers after the one before. `buffer` has room for `threads` x 2 x (vocab_size rounded up to
 * 16) floats. Returns 0, or 1 if a target is outside the vocabulary. */
int minigpt_cross_entropy(
    uint16_t *logits, const uint16_t *teacher, const int64_t *targets, int64_t rows, int64_t vocab_size, int64_t stride,
    float weight, float *losses, float *totals, float *buffer, int threads) {
    int64_t padded = (vocab_size + LANES - 1) / LANES * LANES;
    (void)threads;
    for (int64_t r = 0; r < rows; r++)
        if (targets[r] < 0 || targets[r] >= vocab_size) return 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        kernels->cross_entropy(
            logits + r * stride, teacher ? teacher + r * stride : NULL, targets[r], vocab_size, weight, losses + r,
            totals + r, buffer + THREAD * 2 * padded);
    return 0;
}
