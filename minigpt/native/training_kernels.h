/* The arithmetic of training.c for one instruction set. training.c has defined
 *   ISA, PARTS                as in vectors.h
 *   MULTIPLY_ADD(a, b, sum)   sum + a * b of vectors, rounded once where the processor can
 *
 * In memory, numbers are floats or bfloat16, which is the upper half of a float; a constant `dtype` says which. In between
 * they are floats.
 */

#include "vectors.h"

/* Loops with exponentials take this many vectors at a time, as many as the registers allow. */
enum { NAME(VECTORS) = PARTS == 4 ? 2 : 4, NAME(STEP) = NAME(VECTORS) * WIDTH };
_Static_assert(BLOCK % NAME(STEP) == 0, "the buffers have room for whole steps");
#define EACH for (int j = 0; j < NAME(VECTORS); j++)

typedef uint16_t NAME(halves) __attribute__((vector_size(WIDTH * sizeof(uint16_t))));
typedef uint32_t NAME(words) __attribute__((vector_size(WIDTH * sizeof(uint32_t))));

static inline NAME(floats) NAME(widen)(const uint16_t *p) {
    NAME(halves) upper;
    memcpy(&upper, p, sizeof upper);
    return (NAME(floats))(__builtin_convertvector(upper, NAME(words)) << 16);
}

/* Rounds to the nearest bfloat16, half to even. A NaN that arithmetic has made stays one: its lower bits are 0. */
static inline void NAME(narrow)(uint16_t *p, NAME(floats) v) {
    NAME(words) bits = (NAME(words))v;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    NAME(halves) upper = __builtin_convertvector(bits, NAME(halves));
    memcpy(p, &upper, sizeof upper);
}

/* `v`, the vector from index i on of n numbers, with `rest` in its lanes beyond them. */
static inline NAME(floats) NAME(limit)(NAME(floats) v, int64_t i, int64_t n, float rest) {
    if (n - i >= WIDTH) return v;
    NAME(integers) lanes, last = (NAME(integers)){0} + (int32_t)(n > i ? n - i : 0);
    for (int j = 0; j < WIDTH; j++) lanes[j] = j;
    NAME(integers) inside = lanes < last;
    return (NAME(floats))(((NAME(integers))v & inside) | ((NAME(integers))NAME(broadcast)(rest) & ~inside));
}

/* The vector from index i on of the `room` numbers x, with 0 in its lanes beyond them. */
static inline NAME(floats) NAME(read)(const void *x, int64_t i, int64_t room, const int dtype) {
    const char *p = at(x, i, dtype);
    float lanes[WIDTH] = {0}; /* of floats, or the first half of it of bfloat16 */
    if (room - i < WIDTH) p = room > i ? memcpy(lanes, p, (room - i) * size_of(dtype)) : (const char *)lanes;
    return dtype == FLOAT32 ? NAME(load)((const float *)p) : NAME(widen)((const uint16_t *)p);
}

/* Writes the vector from index i on of the `room` numbers y; its lanes beyond them are dropped. */
static inline void NAME(write)(void *y, int64_t i, int64_t room, NAME(floats) v, const int dtype) {
    float lanes[WIDTH];
    void *p = room - i < WIDTH ? (void *)lanes : (void *)at(y, i, dtype);
    if (dtype == FLOAT32)
        NAME(store)(p, v);
    else
        NAME(narrow)(p, v);
    if (p == lanes && room > i) memcpy((void *)at(y, i, dtype), lanes, (room - i) * size_of(dtype));
}

/* The vectors from index i on of the `room` numbers x. */
static inline __attribute__((always_inline)) void NAME(read_step)(
    NAME(floats) *v, const void *x, int64_t i, int64_t room, const int dtype) {
    EACH v[j] = NAME(read)(x, i + j * WIDTH, room, dtype);
}

/* gates = 1 / (1 + e^(-2u)), with u = sqrt(2/pi) (x + 0.044715 x^3): GPT-2's GELU is x times that. */
static inline __attribute__((always_inline)) void NAME(gate)(NAME(floats) *gates, const NAME(floats) *x) {
    EACH gates[j] = x[j] * x[j];
    EACH gates[j] = x[j] * (-2.0f * 0.79788456f * 0.044715f * gates[j] - 2.0f * 0.79788456f);
    NAME(exponentiate)(gates, NAME(VECTORS), 1);
    EACH gates[j] = 1.0f / (1.0f + gates[j]);
}

/* y = GELU(x). */
static inline __attribute__((always_inline)) void NAME(gelu_of)(void *y, const void *x, int64_t n, const int dtype) {
    for (int64_t i = 0; i < n; i += NAME(STEP)) {
        NAME(floats) v[NAME(VECTORS)], gates[NAME(VECTORS)];
        NAME(read_step)(v, x, i, n, dtype);
        NAME(gate)(gates, v);
        EACH NAME(write)(y, i + j * WIDTH, n, v[j] * gates[j], dtype);
    }
}

/* dx = dy GELU'(x), with GELU' = g + x g (1 - g) 2u' and the gate g. Below about -1e12 it is not 0, because the smallest
 * gate is 6e-39. The squares of x are multiplied last: above about 1e13, x g (1 - g) is 0. */
static inline __attribute__((always_inline)) void NAME(gelu_gradient_of)(
    void *dx, const void *dy, const void *x, int64_t n, const int dtype) {
    for (int64_t i = 0; i < n; i += NAME(STEP)) {
        NAME(floats) v[NAME(VECTORS)], gates[NAME(VECTORS)], slopes[NAME(VECTORS)];
        NAME(read_step)(v, x, i, n, dtype);
        NAME(gate)(gates, v);
        EACH slopes[j] = 2.0f * 0.79788456f * 3.0f * 0.044715f * v[j] * v[j] + 2.0f * 0.79788456f;
        EACH slopes[j] = gates[j] + v[j] * gates[j] * (1.0f - gates[j]) * slopes[j];
        NAME(read_step)(v, dy, i, n, dtype);
        EACH NAME(write)(dx, i + j * WIDTH, n, v[j] * slopes[j], dtype);
    }
}

/* The largest lane. */
static inline float NAME(highest)(NAME(floats) v) {
    f32x4 quarters[WIDTH / 4];
    memcpy(quarters, &v, sizeof v);
    for (int k = 1; k < WIDTH / 4; k++) {
        i32x4 first = quarters[0] > quarters[k];
        quarters[0] = (f32x4)(((i32x4)quarters[0] & first) | ((i32x4)quarters[k] & ~first));
    }
    float highest = quarters[0][0];
    for (int j = 1; j < 4; j++) highest = quarters[0][j] > highest ? quarters[0][j] : highest;
    return highest;
}

/* The exponentials of `scale` times the first n of the `room` numbers x, minus their largest. `y` has room for n, rounded
 * up to BLOCK. */
static inline __attribute__((always_inline)) void NAME(exponentials)(
    float *y, const void *x, int64_t n, int64_t room, float scale, float *largest, float *total, const int dtype) {
    NAME(floats) v[NAME(VECTORS)], maxima = NAME(broadcast)(-INFINITY), totals[PARTS] = {{0}};
    for (int64_t i = 0; i < n; i += NAME(STEP)) {
        NAME(read_step)(v, x, i, room, dtype);
        EACH v[j] = NAME(limit)(v[j] * scale, i + j * WIDTH, n, -INFINITY);
        EACH maxima = NAME(larger)(maxima, v[j]);
        EACH NAME(store)(y + i + j * WIDTH, v[j]);
    }
    *largest = NAME(highest)(maxima);
    for (int64_t i = 0; i < n; i += NAME(STEP)) {
        EACH v[j] = NAME(load)(y + i + j * WIDTH) - *largest;
        NAME(exponentiate)(v, NAME(VECTORS), 1);
        EACH totals[j % PARTS] += v[j];
        EACH NAME(store)(y + i + j * WIDTH, v[j]);
    }
    *total = NAME(total)(totals);
}

/* The first n of the `room` numbers x become softmax(scale x), the others 0. */
static void NAME(softmax)(uint16_t *x, int64_t n, int64_t room, float scale, float *buffer) {
    float largest, total;
    NAME(exponentials)(buffer, x, n, room, scale, &largest, &total, BFLOAT16);
    int64_t i = 0;
    for (; i < n; i += WIDTH)
        NAME(write)(x, i, room, NAME(limit)(NAME(load)(buffer + i) * (1 / total), i, n, 0), BFLOAT16);
    if (i < room) memset(x + i, 0, (room - i) * sizeof *x);
}

/* The gradient of y = softmax(scale x) with respect to x: dx = y (dy - sum(y dy)) scale. From the n-th of the `room`
 * numbers on, y is 0, and dx becomes 0. */
static void NAME(softmax_gradient)(
    uint16_t *dx, const uint16_t *dy, const uint16_t *y, int64_t n, int64_t room, float scale) {
    NAME(floats) sums[PARTS] = {{0}};
    for (int64_t i = 0; i < n; i += LANES)
        for (int p = 0; p < PARTS; p++) {
            int64_t from = i + p * WIDTH;
            NAME(floats) gradient = NAME(limit)(NAME(read)(dy, from, room, BFLOAT16), from, n, 0);
            sums[p] += NAME(read)(y, from, room, BFLOAT16) * gradient;
        }
    float sum = NAME(total)(sums);
    int64_t i = 0;
    for (; i < n; i += WIDTH) {
        NAME(floats) difference = NAME(limit)(NAME(read)(dy, i, room, BFLOAT16) - sum, i, n, 0);
        NAME(write)(dx, i, room, NAME(read)(y, i, room, BFLOAT16) * difference * scale, BFLOAT16);
    }
    if (i < room) memset(dx + i, 0, (room - i) * sizeof *dx);
}

/* v with 0 for numbers below about 1e-30, so that no product with a probability's normalization is below the smallest normal
 * float: each such product takes Intel's processors more than a hundred cycles. */
static inline NAME(floats) NAME(drop_tiny)(NAME(floats) v) {
    NAME(integers) bits = (NAME(integers))v, is_large = (bits & 0x7fffffff) >= 0x0da24260;
    return (NAME(floats))(bits & is_large);
}

/* Overwrites n logits with softmax(logits) - (1 - weight) onehot(target) - weight softmax(teacher), the gradient of the
 * cross entropy, which is *loss + ln(*total). Without a teacher, the weight is 0. */
static inline __attribute__((always_inline)) void NAME(cross_entropy_of)(
    void *logits, const void *teacher, int64_t target, int64_t n, float weight, float *loss, float *total, float *buffer,
    const int dtype) {
    float largest, largest_of_teacher, total_of_teacher, target_logit, share = 0;
    float *soft = buffer + (n + BLOCK - 1) / BLOCK * BLOCK;
    NAME(floats) products[PARTS] = {{0}};
    NAME(exponentials)(buffer, logits, n, n, 1, &largest, total, dtype);
    target_logit = NAME(read)(logits, target, n, dtype)[0];
    *loss = largest - (1 - weight) * target_logit;
    if (teacher) {
        NAME(exponentials)(soft, teacher, n, n, 1, &largest_of_teacher, &total_of_teacher, dtype);
        for (int64_t i = 0; i < n; i += LANES)
            for (int p = 0; p < PARTS && i + p * WIDTH < n; p++) /* `exponentials` writes only as many steps as n needs */
                products[p] += NAME(load)(soft + i + p * WIDTH) * NAME(read)(logits, i + p * WIDTH, n, dtype);
        share = weight / total_of_teacher;
        *loss -= share * NAME(total)(products);
    }
    buffer[target] -= (1 - weight) * *total;
    float inverse = 1 / *total;
    for (int64_t i = 0; i < n; i += WIDTH) {
        NAME(floats) gradient = NAME(drop_tiny)(NAME(load)(buffer + i)) * inverse;
        if (teacher) gradient -= NAME(drop_tiny)(NAME(load)(soft + i)) * share;
        NAME(write)(logits, i, n, gradient, dtype);
    }
}

/* `read` and `write` of n numbers. If they are `whole` vectors, a constant, no vector has a part beyond them. */
static inline __attribute__((always_inline)) NAME(floats) NAME(get)(
    const void *x, int64_t i, int64_t n, const int dtype, const int whole) {
    return whole ? NAME(read)(at(x, i, dtype), 0, WIDTH, dtype) : NAME(read)(x, i, n, dtype);
}

static inline __attribute__((always_inline)) void NAME(put)(
    void *y, int64_t i, int64_t n, NAME(floats) v, const int dtype, const int whole) {
    if (whole)
        NAME(write)((void *)at(y, i, dtype), 0, WIDTH, v, dtype);
    else
        NAME(write)(y, i, n, v, dtype);
}

/* y = (x - mean) / sqrt(variance + epsilon) weight + bias for a row of n floats x; *mean and *inverse, which is
 * 1 / sqrt(variance + epsilon), are what the gradient needs. */
static inline __attribute__((always_inline)) void NAME(layer_norm_of)(
    void *y, float *mean, float *inverse, const float *x, const float *weight, const float *bias, int64_t n,
    float epsilon, const int dtype, const int whole) {
    NAME(floats) sums[PARTS] = {{0}}, squares[PARTS] = {{0}};
    for (int64_t i = 0; i < n; i += LANES)
        for (int p = 0; p < PARTS; p++) sums[p] += NAME(get)(x, i + p * WIDTH, n, FLOAT32, whole);
    float average = NAME(total)(sums) / n;
    for (int64_t i = 0; i < n; i += LANES)
        for (int p = 0; p < PARTS; p++) {
            int64_t from = i + p * WIDTH;
            NAME(floats) difference = NAME(get)(x, from, n, FLOAT32, whole) - average;
            if (!whole) difference = NAME(limit)(difference, from, n, 0);
            squares[p] = MULTIPLY_ADD(difference, difference, squares[p]);
        }
    float factor = 1 / sqrtf(NAME(total)(squares) / n + epsilon);
    for (int64_t i = 0; i < n; i += WIDTH) {
        NAME(floats) normalized = (NAME(get)(x, i, n, FLOAT32, whole) - average) * factor;
        NAME(floats) scale = NAME(get)(weight, i, n, FLOAT32, whole), shift = NAME(get)(bias, i, n, FLOAT32, whole);
        NAME(put)(y, i, n, MULTIPLY_ADD(normalized, scale, shift), dtype, whole);
    }
    *mean = average, *inverse = factor;
}

/* The gradient dx of a row x from that of y, and those of weight and bias, which are added to dweight and dbias. With the
 * normalized row z and g = dy weight, dx = (g - mean(g) - z mean(g z)) inverse. Source: Ba et al. 2016, "Layer
 * normalization". */
static inline __attribute__((always_inline)) void NAME(layer_norm_gradient_of)(
    float *dx, float *dweight, float *dbias, const void *dy, const float *x, const float *weight, float mean,
    float inverse, int64_t n, const int dtype, const int whole) {
    NAME(floats) sums[PARTS] = {{0}}, products[PARTS] = {{0}};
    for (int64_t i = 0; i < n; i += LANES)
        for (int p = 0; p < PARTS; p++) {
            int64_t from = i + p * WIDTH;
            NAME(floats) gradient = NAME(get)(dy, from, n, dtype, whole);
            NAME(floats) normalized = (NAME(get)(x, from, n, FLOAT32, whole) - mean) * inverse;
            NAME(floats) g = gradient * NAME(get)(weight, from, n, FLOAT32, whole); /* 0 beyond n */
            NAME(floats) of_weight = NAME(get)(dweight, from, n, FLOAT32, whole);
            NAME(put)(dweight, from, n, MULTIPLY_ADD(gradient, normalized, of_weight), FLOAT32, whole);
            NAME(put)(dbias, from, n, gradient + NAME(get)(dbias, from, n, FLOAT32, whole), FLOAT32, whole);
            sums[p] += g;
            products[p] = MULTIPLY_ADD(g, normalized, products[p]);
        }
    float average = NAME(total)(sums) / n, slope = NAME(total)(products) / n;
    for (int64_t i = 0; i < n; i += WIDTH) {
        NAME(floats) normalized = (NAME(get)(x, i, n, FLOAT32, whole) - mean) * inverse;
        NAME(floats) g = NAME(get)(dy, i, n, dtype, whole) * NAME(get)(weight, i, n, FLOAT32, whole);
        NAME(put)(dx, i, n, (g - average - normalized * slope) * inverse, FLOAT32, whole);
    }
}

/* Adam's moments after a gradient, and the update that they give, which is to be subtracted; see `Adam`. */
static void NAME(adam)(
    float *restrict update, float *restrict mean, float *restrict square, const float *restrict gradient, int64_t n,
    const Adam *adam) {
    for (int64_t i = 0; i < n; i++) {
        mean[i] += (1 - adam->beta1) * (gradient[i] - mean[i]);
        square[i] = adam->beta2 * square[i] + (1 - adam->beta2) * gradient[i] * gradient[i];
        update[i] = adam->rate * mean[i] / (sqrtf(square[i]) * adam->correction + adam->epsilon);
    }
}

/* The momentum of n numbers after their gradient, and Nesterov's x, of which a part `beta` is the momentum. */
static inline __attribute__((always_inline)) void NAME(momentum_of)(
    void *x, float *momentum, const float *gradient, int64_t n, float beta, const int dtype, const int whole) {
    for (int64_t i = 0; i < n; i += WIDTH) {
        NAME(floats) g = NAME(get)(gradient, i, n, FLOAT32, whole), m = NAME(get)(momentum, i, n, FLOAT32, whole);
        m += (1 - beta) * (g - m);
        NAME(put)(momentum, i, n, m, FLOAT32, whole);
        NAME(put)(x, i, n, g + beta * (m - g), dtype, whole);
    }
}

/* y = a y + b x for n numbers, of which x has the dtype and y is in float32; BLAS calls it axpby. */
static inline __attribute__((always_inline)) void NAME(axpby_of)(
    float *y, const void *x, int64_t n, float a, float b, const int dtype, const int whole) {
    for (int64_t i = 0; i < n; i += WIDTH) {
        NAME(floats) v = NAME(get)(x, i, n, dtype, whole);
        NAME(put)(y, i, n, a * NAME(get)(y, i, n, FLOAT32, whole) + b * v, FLOAT32, whole);
    }
}

/* z = x + y for n numbers, of which y has the dtype and the others are floats. */
static inline __attribute__((always_inline)) void NAME(add_of)(
    float *z, const float *x, const void *y, int64_t n, const int dtype, const int whole) {
    for (int64_t i = 0; i < n; i += WIDTH)
        NAME(put)(z, i, n, NAME(get)(x, i, n, FLOAT32, whole) + NAME(get)(y, i, n, dtype, whole), FLOAT32, whole);
}

#define OF_ROW(function, n, ...) (n) % LANES == 0 ? NAME(function)(__VA_ARGS__, 1) : NAME(function)(__VA_ARGS__, 0)
#define FOR_DTYPE(name, dtype) \
    static void NAME(momentum_##name)(void *x, float *momentum, const float *gradient, int64_t n, float beta) { \
        OF_ROW(momentum_of, n, x, momentum, gradient, n, beta, dtype); \
    } \
    static void NAME(axpby_##name)(float *y, const void *x, int64_t n, float a, float b) { \
        OF_ROW(axpby_of, n, y, x, n, a, b, dtype); \
    } \
    static void NAME(add_##name)(float *z, const float *x, const void *y, int64_t n) { \
        OF_ROW(add_of, n, z, x, y, n, dtype); \
    } \
    static void NAME(layer_norm_##name)( \
        void *y, float *mean, float *inverse, const float *x, const float *weight, const float *bias, int64_t n, \
        float epsilon) { \
        OF_ROW(layer_norm_of, n, y, mean, inverse, x, weight, bias, n, epsilon, dtype); \
    } \
    static void NAME(layer_norm_gradient_##name)( \
        float *dx, float *dweight, float *dbias, const void *dy, const float *x, const float *weight, float mean, \
        float inverse, int64_t n) { \
        OF_ROW(layer_norm_gradient_of, n, dx, dweight, dbias, dy, x, weight, mean, inverse, n, dtype); \
    } \
    static void NAME(gelu_##name)(void *y, const void *x, int64_t n) { NAME(gelu_of)(y, x, n, dtype); } \
    static void NAME(gelu_gradient_##name)(void *dx, const void *dy, const void *x, int64_t n) { \
        NAME(gelu_gradient_of)(dx, dy, x, n, dtype); \
    } \
    static void NAME(cross_entropy_##name)( \
        void *logits, const void *teacher, int64_t target, int64_t n, float weight, float *loss, float *total, \
        float *buffer) { \
        NAME(cross_entropy_of)(logits, teacher, target, n, weight, loss, total, buffer, dtype); \
    }
FOR_DTYPE(bfloat16, BFLOAT16)
FOR_DTYPE(float32, FLOAT32)
#undef FOR_DTYPE
#undef OF_ROW

#include "attention_kernels.h"
#include "orthogonalization_kernels.h"

static const Kernels NAME(kernels) = {
    {NAME(momentum_bfloat16), NAME(momentum_float32)},
    {NAME(axpby_bfloat16), NAME(axpby_float32)},
    {NAME(add_bfloat16), NAME(add_float32)},
    NAME(adam),
    {NAME(layer_norm_bfloat16), NAME(layer_norm_float32)},
    {NAME(layer_norm_gradient_bfloat16), NAME(layer_norm_gradient_float32)},
    {NAME(gelu_bfloat16), NAME(gelu_float32)},
    {NAME(gelu_gradient_bfloat16), NAME(gelu_gradient_float32)},
    {NAME(cross_entropy_bfloat16), NAME(cross_entropy_float32)},
    NAME(softmax),
    NAME(softmax_gradient),
    {NAME(attend_head_bfloat16), NAME(attend_head_float32)},
    {NAME(attend_head_gradient_bfloat16), NAME(attend_head_gradient_float32)},
    {NULL, NAME(orthogonalize)},
};

#undef EACH
#undef NAME
#undef JOIN
#undef JOIN_
#undef ISA
#undef PARTS
#undef WIDTH
#undef MULTIPLY_ADD
