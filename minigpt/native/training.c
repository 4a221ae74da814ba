/* Operations of a training step on a CPU: GELU and the cross entropy with its gradient in bfloat16 and float32, the softmax
 * of causal attention in bfloat16, causal attention and Muon's orthogonalization in float32. PyTorch needs several passes
 * over memory for most of them, computes all of a symmetric matrix, and computes GELU more slowly.
 *
 * Matrix products, which PyTorch computes at about the processor's peak, are half of a small model's step; these
 * operations were a quarter of it. minigpt/native/operations.py calls these functions through ctypes. The arithmetic is in
 * training_kernels.h and the headers that it includes. Shapes are in C order; `threads` is the number of OpenMP threads.
 */

#include "platform.h"

enum { CHUNK = 4096, QUERIES = 16 }; /* numbers or rows that a thread computes at once */
enum { BFLOAT16, FLOAT32, DTYPES };  /* as in operations.py */
enum { BLOCK = 64 };                 /* a multiple of the numbers whose exponentials are computed at once */
enum { TILE_ROWS = 6 };              /* of a product, whose sums fit into the registers with two vectors of columns */
enum { ROW_MULTIPLE = 32 };          /* a multiple of a tile's columns, to which attention's rows are padded */

static inline int64_t size_of(const int dtype) { return dtype == FLOAT32 ? sizeof(float) : sizeof(uint16_t); }
static inline const char *at(const void *x, int64_t i, const int dtype) { return (const char *)x + i * size_of(dtype); }
static inline int64_t padded_length(int64_t length) { return (length + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE; }

typedef struct {
    void (*gelu[DTYPES])(void *, const void *, int64_t);
    void (*gelu_gradient[DTYPES])(void *, const void *, const void *, int64_t);
    void (*cross_entropy[DTYPES])(void *, const void *, int64_t, int64_t, float, float *, float *, float *);
    void (*softmax)(uint16_t *, int64_t, int64_t, float, float *);
    void (*softmax_gradient)(uint16_t *, const uint16_t *, const uint16_t *, int64_t, int64_t, float);
    void (*attend_head)(
        float *, int64_t, float *, const float *, const float *, const float *, int64_t, int64_t, int64_t, float,
        float *);
    void (*attend_head_gradient)(
        float *, float *, float *, const float *, int64_t, const float *, const float *, const float *, const float *,
        int64_t, int64_t, int64_t, float, float *);
    void (*orthogonalize)(float *, const float *, int64_t, int64_t, const float *, int64_t, float, float *);
} Kernels;

#define ISA plain
#define PARTS 4
#define MULTIPLY_ADD(a, b, sum) ((sum) + (a) * (b))
#include "training_kernels.h"

#if defined(__x86_64__)
BEGIN_TARGET("avx2,fma")
#define ISA avx2
#define PARTS 2
#define MULTIPLY_ADD(a, b, sum) ((floats_avx2)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(sum)))
#include "training_kernels.h"
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")
#define ISA avx512
#define PARTS 1
#define MULTIPLY_ADD(a, b, sum) ((floats_avx512)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(sum)))
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
void minigpt_gelu(int dtype, void *y, const void *x, int64_t n, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i += CHUNK)
        kernels->gelu[dtype]((void *)at(y, i, dtype), at(x, i, dtype), n - i < CHUNK ? n - i : CHUNK);
}

/* dx = dy GELU'(x) for n numbers. */
void minigpt_gelu_gradient(int dtype, void *dx, const void *dy, const void *x, int64_t n, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i += CHUNK)
        kernels->gelu_gradient[dtype](
            (void *)at(dx, i, dtype), at(dy, i, dtype), at(x, i, dtype), n - i < CHUNK ? n - i : CHUNK);
}

/* The attention weights softmax(scale scores), in place, (heads, length, length): query t attends to keys 0 to t, and
 * the weights of later keys are 0. `buffer` has room for `threads` x (length rounded up to 64) floats. */
void minigpt_causal_softmax(uint16_t *scores, int64_t heads, int64_t length, float scale, float *buffer, int threads) {
    int64_t padded = (length + BLOCK - 1) / BLOCK * BLOCK;
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
 * 64) floats. Returns 0, or 1 if a target is outside the vocabulary. */
int minigpt_cross_entropy(
    int dtype, void *logits, const void *teacher, const int64_t *targets, int64_t rows, int64_t vocab_size,
    int64_t stride, float weight, float *losses, float *totals, float *buffer, int threads) {
    int64_t padded = (vocab_size + BLOCK - 1) / BLOCK * BLOCK;
    (void)threads;
    for (int64_t r = 0; r < rows; r++)
        if (targets[r] < 0 || targets[r] >= vocab_size) return 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        kernels->cross_entropy[dtype](
            (void *)at(logits, r * stride, dtype), teacher ? at(teacher, r * stride, dtype) : NULL, targets[r],
            vocab_size, weight, losses + r, totals + r, buffer + THREAD * 2 * padded);
    return 0;
}

/* The floats that a thread's buffer needs for attention, and for its gradient. */
int64_t minigpt_attention_buffer(int64_t length, int64_t width, int gradient) {
    int64_t padded = padded_length(length);
    return 2 * length * width + (gradient ? 2 * (width + length) : width + TILE_ROWS) * padded;
}

/* Causal attention: y (batch, length, heads x width) from the queries, keys and values of all heads in qkv (batch, length,
 * 3 x heads x width), with scores divided by sqrt(width), a multiple of 16. logs (batch, heads, length) is what the
 * gradient needs. `buffer` has room for `threads` x minigpt_attention_buffer floats. */
void minigpt_attention(
    float *y, float *logs, const float *qkv, int64_t batch, int64_t length, int64_t heads, int64_t width, float *buffer,
    int threads) {
    int64_t c = heads * width, room = minigpt_attention_buffer(length, width, 0);
    float scale = 1 / sqrtf((float)width);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < batch * heads; i++) {
        int64_t first = i / heads * length, column = i % heads * width;
        const float *q = qkv + first * 3 * c + column;
        kernels->attend_head(
            y + first * c + column, c, logs + i * length, q, q + c, q + 2 * c, 3 * c, length, width, scale,
            buffer + THREAD * room);
    }
}

/* The gradient dqkv from dy, with qkv and `logs` as in minigpt_attention. */
void minigpt_attention_gradient(
    float *dqkv, const float *dy, const float *logs, const float *qkv, int64_t batch, int64_t length, int64_t heads,
    int64_t width, float *buffer, int threads) {
    int64_t c = heads * width, room = minigpt_attention_buffer(length, width, 1);
    float scale = 1 / sqrtf((float)width);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < batch * heads; i++) {
        int64_t first = i / heads * length, column = i % heads * width, from = first * 3 * c + column;
        const float *q = qkv + from;
        kernels->attend_head_gradient(
            dqkv + from, dqkv + from + c, dqkv + from + 2 * c, dy + first * c + column, c, logs + i * length, q, q + c,
            q + 2 * c, 3 * c, length, width, scale, buffer + THREAD * room);
    }
}

/* The floats that a thread's buffer needs to orthogonalize a matrix: for four square matrices, a scale for each row, and a
 * product. A product of m columns of depth d needs (m rounded up to TILE_ROWS, plus a tile's columns) x d floats. Where m is
 * the shorter side, d is at most the longer one; where m is the longer side, d is the shorter one, which needs no more. */
int64_t minigpt_orthogonalization_buffer(int64_t rows, int64_t columns) {
    int64_t shorter = rows < columns ? rows : columns, longer = rows < columns ? columns : rows;
    return 4 * shorter * shorter + shorter + (shorter + TILE_ROWS + ROW_MULTIPLE) * longer;
}

/* y = x with each matrix orthogonalized, (matrices, rows, columns). `polynomials` has three coefficients for each of `count`
 * iterations. `buffer` has room for `threads` x minigpt_orthogonalization_buffer floats. */
void minigpt_orthogonalize(
    float *y, const float *x, int64_t matrices, int64_t rows, int64_t columns, const float *polynomials, int64_t count,
    float safety, float *buffer, int threads) {
    int64_t size = rows * columns, room = minigpt_orthogonalization_buffer(rows, columns);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < matrices; i++)
        kernels->orthogonalize(
            y + i * size, x + i * size, rows, columns, polynomials, count, safety, buffer + THREAD * room);
}
