/* Operations of a training step on a CPU: layer norm, GELU, causal attention and the cross entropy with its gradient in
 * bfloat16 and float32, the softmax of causal attention in bfloat16, Adam for a token embedding with spelling features, and
 * Muon, whose orthogonalization is in float32. PyTorch needs several passes over memory for most of them, computes all of a symmetric
 * matrix, and computes GELU more slowly.
 *
 * Matrix products, which PyTorch computes at about the processor's peak, are half of a small model's step; these
 * operations were a quarter of it. With AMX, products in bfloat16 are computed here too, see amx_kernels.h. The modules in
 * minigpt/native call these functions through ctypes. The arithmetic is in training_kernels.h and the headers that it includes.
 * Shapes are in C order; `threads` is the number of OpenMP threads.
 */

#include "platform.h"

enum { CHUNK = 4096, QUERIES = 16 }; /* numbers or rows that a thread computes at once */
enum { BFLOAT16, FLOAT32, DTYPES };  /* as in operations.py */
enum { BLOCK = 64 };                 /* a multiple of the numbers whose exponentials are computed at once */
enum { NORM_ROWS = 64 };             /* as in operations.py */
enum { FEATURES = 64 };              /* spelling features that a thread takes at once */
enum { TILE_ROWS = 6 };              /* of a product, whose sums fit into the registers with two vectors of columns */
enum { ROW_MULTIPLE = 32 };          /* a multiple of a tile's columns, to which attention's rows are padded */

static inline int64_t size_of(const int dtype) { return dtype == FLOAT32 ? sizeof(float) : sizeof(uint16_t); }
static inline const char *at(const void *x, int64_t i, const int dtype) { return (const char *)x + i * size_of(dtype); }
static inline int64_t padded_length(int64_t length) { return (length + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE; }

/* An update of Adam, with `rate` = learning rate / (1 - beta1^t) and `correction` = 1 / sqrt(1 - beta2^t) in step t: it is rate
 * mean / (sqrt(square) correction + epsilon). Source: Kingma and Ba 2015, section 2. */
typedef struct {
    float beta1, beta2, rate, correction, epsilon;
} Adam;

typedef struct {
    void (*momentum[DTYPES])(void *, float *, const float *, int64_t, float);
    void (*axpby[DTYPES])(float *, const void *, int64_t, float, float);
    void (*add[DTYPES])(float *, const float *, const void *, int64_t);
    void (*adam)(float *, float *, float *, const float *, int64_t, const Adam *);
    void (*layer_norm[DTYPES])(void *, float *, float *, const float *, const float *, const float *, int64_t, float);
    void (*layer_norm_gradient[DTYPES])(
        float *, float *, float *, const void *, const float *, const float *, float, float, int64_t);
    void (*gelu[DTYPES])(void *, const void *, int64_t);
    void (*gelu_gradient[DTYPES])(void *, const void *, const void *, int64_t);
    void (*cross_entropy[DTYPES])(void *, const void *, int64_t, int64_t, float, float *, float *, float *);
    void (*softmax)(uint16_t *, int64_t, int64_t, float, float *);
    void (*softmax_gradient)(uint16_t *, const uint16_t *, const uint16_t *, int64_t, int64_t, float);
    void (*attend_head[DTYPES])(
        void *, int64_t, float *, const void *, const void *, const void *, int64_t, int64_t, int64_t, float, float *);
    void (*attend_head_gradient[DTYPES])(
        void *, void *, void *, const void *, int64_t, const float *, const void *, const void *, const void *, int64_t,
        int64_t, int64_t, float, float *);
    void (*orthogonalize[DTYPES])(void *, const void *, int64_t, int64_t, const float *, int64_t, float, float *);
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
#if defined(HAVE_AMX)
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,amx-tile,amx-bf16")
#include "amx_kernels.h"
END_TARGET
#endif
#endif

static const Kernels *kernels = &kernels_plain;
#if defined(HAVE_AMX)
static Kernels kernels_amx; /* those of AVX-512, and some with tiles */
#endif

/* Selects an instruction set that minigpt_use has returned. Those without kernels of their own here use plain C. */
void minigpt_training_use(const char *name) {
    kernels = &kernels_plain;
#if defined(__x86_64__)
    if (!strcmp(name, "avx2")) kernels = &kernels_avx2;
    if (!strcmp(name, "avx512-vnni")) kernels = &kernels_avx512;
#if defined(HAVE_AMX)
    if (!strcmp(name, "avx512-amx")) {
        kernels_amx = kernels_avx512;
        kernels_amx.attend_head[BFLOAT16] = attend_head_tiles;
        kernels_amx.attend_head_gradient[BFLOAT16] = attend_head_gradient_tiles;
        kernels_amx.orthogonalize[BFLOAT16] = orthogonalize_tiles;
        kernels = &kernels_amx;
    }
#endif
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

/* y = the layer norm of rows of x, (rows, width), where y has the dtype and all others are floats. `statistics`, (2, rows),
 * is what the gradient needs. */
void minigpt_layer_norm(
    int dtype, void *y, float *statistics, const float *x, const float *weight, const float *bias, int64_t rows,
    int64_t width, float epsilon, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        kernels->layer_norm[dtype](
            (void *)at(y, r * width, dtype), statistics + r, statistics + rows + r, x + r * width, weight, bias, width,
            epsilon);
}

/* The gradients dx (rows, width) of x, and of weight and bias, the rows of dparameters (2, width), from that of y, which has
 * the dtype. Both are summed over NORM_ROWS rows at a time, in `sums`, which has room for (rows / NORM_ROWS, rounded up) x 2
 * x width floats. So the number of threads changes no bit. */
void minigpt_layer_norm_gradient(
    int dtype, float *dx, float *dparameters, const void *dy, const float *statistics, const float *x,
    const float *weight, int64_t rows, int64_t width, float *sums, int threads) {
    int64_t parts = (rows + NORM_ROWS - 1) / NORM_ROWS;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < parts; part++) {
        float *sum = sums + part * 2 * width;
        memset(sum, 0, 2 * width * sizeof *sum);
        for (int64_t r = part * NORM_ROWS; r < rows && r < (part + 1) * NORM_ROWS; r++)
            kernels->layer_norm_gradient[dtype](
                dx + r * width, sum, sum + width, at(dy, r * width, dtype), x + r * width, weight, statistics[r],
                statistics[rows + r], width);
    }
    memset(dparameters, 0, 2 * width * sizeof *dparameters);
    for (int64_t part = 0; part < parts; part++)
        for (int64_t i = 0; i < 2 * width; i++) dparameters[i] += sums[part * 2 * width + i];
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

/* The floats that a thread's buffer needs for attention, and for its gradient. With AMX, which keeps most numbers in bfloat16, it
 * needs fewer. */
int64_t minigpt_attention_buffer(int64_t length, int64_t width, int gradient) {
    int64_t padded = padded_length(length), size = length * width, tile = TILE_ROWS * width;
    return gradient ? 2 * (width + length) * padded + 3 * size + tile : (width + TILE_ROWS) * padded + 2 * size + tile;
}

/* Causal attention: y (batch, length, heads x width) from the queries, keys and values of all heads in qkv (batch, length,
 * 3 x heads x width), with scores divided by sqrt(width), a multiple of 16. logs (batch, heads, length) is what the
 * gradient needs. `buffer` has room for `threads` x minigpt_attention_buffer floats. */
void minigpt_attention(
    int dtype, void *y, float *logs, const void *qkv, int64_t batch, int64_t length, int64_t heads, int64_t width,
    float *buffer, int threads) {
    int64_t c = heads * width, room = minigpt_attention_buffer(length, width, 0);
    float scale = 1 / sqrtf((float)width);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < batch * heads; i++) {
        int64_t first = i / heads * length, column = i % heads * width, q = first * 3 * c + column;
        kernels->attend_head[dtype](
            (void *)at(y, first * c + column, dtype), c, logs + i * length, at(qkv, q, dtype), at(qkv, q + c, dtype),
            at(qkv, q + 2 * c, dtype), 3 * c, length, width, scale, buffer + THREAD * room);
    }
}

/* The gradient dqkv from dy, with qkv and `logs` as in minigpt_attention. */
void minigpt_attention_gradient(
    int dtype, void *dqkv, const void *dy, const float *logs, const void *qkv, int64_t batch, int64_t length,
    int64_t heads, int64_t width, float *buffer, int threads) {
    int64_t c = heads * width, room = minigpt_attention_buffer(length, width, 1);
    float scale = 1 / sqrtf((float)width);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < batch * heads; i++) {
        int64_t first = i / heads * length, column = i % heads * width, q = first * 3 * c + column;
        kernels->attend_head_gradient[dtype](
            (void *)at(dqkv, q, dtype), (void *)at(dqkv, q + c, dtype), (void *)at(dqkv, q + 2 * c, dtype),
            at(dy, first * c + column, dtype), c, logs + i * length, at(qkv, q, dtype), at(qkv, q + c, dtype),
            at(qkv, q + 2 * c, dtype), 3 * c, length, width, scale, buffer + THREAD * room);
    }
}

/* The gradient of a token embedding (tokens, width): row positions[t] of `rows` is that of token t; it is 0 where positions[t]
 * is negative. */
typedef struct {
    const float *rows;
    const int64_t *positions;
    int64_t width;
} Gradient;

/* Adam for the vectors of spelling features, of which feature f is that of the tokens from tokens[starts[f]] up to
 * tokens[starts[f + 1]]. Its gradient is the sum of theirs. updates, mean and square are (features, width). `buffer` has room
 * for `threads` x width floats. */
void minigpt_adam_of_features(
    float *updates, float *mean, float *square, const Gradient *gradient, const int64_t *tokens, const int64_t *starts,
    int64_t features, const Adam *adam, float *buffer, int threads) {
    int64_t width = gradient->width;
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic, FEATURES)
    for (int64_t f = 0; f < features; f++) {
        float *sum = buffer + THREAD * width;
        memset(sum, 0, width * sizeof *sum);
        for (int64_t i = starts[f]; i < starts[f + 1]; i++) {
            int64_t position = gradient->positions[tokens[i]];
            if (position >= 0) kernels->axpby[FLOAT32](sum, gradient->rows + position * width, width, 1, 1);
        }
        kernels->adam(updates + f * width, mean + f * width, square + f * width, sum, width, adam);
    }
}

/* Adam for the token embedding `weight`, (tokens, width), multiplied with `kept` first, plus the updates of the features of
 * each token: token t has those from features[starts[t]] up to features[starts[t + 1]]. The buffer is as above, but with
 * room for `threads` x 2 x width floats. */
void minigpt_adam_of_tokens(
    float *weight, float *mean, float *square, const Gradient *gradient, const float *updates, const int64_t *features,
    const int64_t *starts, int64_t tokens, float kept, const Adam *adam, float *buffer, int threads) {
    int64_t width = gradient->width;
    memset(buffer, 0, threads * 2 * width * sizeof *buffer);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        float *update = buffer + THREAD * 2 * width, *none = update + width;
        int64_t position = gradient->positions[t];
        kernels->adam(
            update, mean + t * width, square + t * width, position < 0 ? none : gradient->rows + position * width, width,
            adam);
        for (int64_t i = starts[t]; i < starts[t + 1]; i++)
            kernels->axpby[FLOAT32](update, updates + features[i] * width, width, 1, 1);
        kernels->axpby[FLOAT32](weight + t * width, update, width, kept, -1);
    }
}

/* Muon's momentum of n numbers after their gradient, and what it orthogonalizes: x, which has the dtype. */
void minigpt_momentum(int dtype, void *x, float *momentum, const float *gradient, int64_t n, float beta, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i += CHUNK)
        kernels->momentum[dtype](
            (void *)at(x, i, dtype), momentum + i, gradient + i, n - i < CHUNK ? n - i : CHUNK, beta);
}

/* weight = kept weight + factor update for n numbers; the update has the dtype. */
void minigpt_move(
    int dtype, float *weight, const void *update, int64_t n, float kept, float factor, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i += CHUNK)
        kernels->axpby[dtype](weight + i, at(update, i, dtype), n - i < CHUNK ? n - i : CHUNK, kept, factor);
}

/* The floats that a thread's buffer needs to orthogonalize a matrix: for four square matrices, a scale for each row, and a
 * product. A product of m columns of depth d needs (m rounded up to TILE_ROWS, plus a tile's columns) x d floats. Where m is
 * the shorter side, d is at most the longer one; where m is the longer side, d is the shorter one, which needs no more. */
int64_t minigpt_orthogonalization_buffer(int dtype, int64_t rows, int64_t columns) {
#if defined(HAVE_AMX)
    if (dtype == BFLOAT16) return orthogonalization_tiles_buffer(rows, columns);
#endif
    (void)dtype;
    int64_t shorter = rows < columns ? rows : columns, longer = rows < columns ? columns : rows;
    return 4 * shorter * shorter + shorter + (shorter + TILE_ROWS + ROW_MULTIPLE) * longer;
}

/* y = x with each matrix orthogonalized, (matrices, rows, columns). `polynomials` has three coefficients for each of `count`
 * iterations. `buffer` has room for `threads` x minigpt_orthogonalization_buffer floats. */
void minigpt_orthogonalize(
    int dtype, void *y, const void *x, int64_t matrices, int64_t rows, int64_t columns, const float *polynomials,
    int64_t count, float safety, float *buffer, int threads) {
    int64_t size = rows * columns, room = minigpt_orthogonalization_buffer(dtype, rows, columns);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < matrices; i++)
        kernels->orthogonalize[dtype](
            (void *)at(y, i * size, dtype), at(x, i * size, dtype), rows, columns, polynomials, count, safety,
            buffer + THREAD * room);
}

/* z = x + y for n numbers, of which y has the dtype and the others are floats. */
void minigpt_add(int dtype, float *z, const float *x, const void *y, int64_t n, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i += CHUNK)
        kernels->add[dtype](z + i, x + i, at(y, i, dtype), n - i < CHUNK ? n - i : CHUNK);
}
