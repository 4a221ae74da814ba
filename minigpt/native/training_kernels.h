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

/* v with 0 for numbers below the smallest normal float, with which some processors multiply a hundred times slower. */
static inline NAME(floats) NAME(normal)(NAME(floats) v) {
    NAME(integers) bits = (NAME(integers))v, is_normal = (bits & 0x7fffffff) >= 0x00800000;
    return (NAME(floats))(bits & is_normal);
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
            for (int p = 0; p < PARTS; p++)
                products[p] += NAME(load)(soft + i + p * WIDTH) * NAME(read)(logits, i + p * WIDTH, n, dtype);
        share = weight / total_of_teacher;
        *loss -= share * NAME(total)(products);
    }
    buffer[target] -= (1 - weight) * *total;
    float inverse = 1 / *total;
    for (int64_t i = 0; i < n; i += WIDTH) {
        NAME(floats) gradient = NAME(load)(buffer + i) * inverse;
        if (teacher) gradient -= NAME(load)(soft + i) * share;
        NAME(write)(logits, i, n, NAME(normal)(gradient), dtype);
    }
}

#define FOR_DTYPE(name, dtype) \
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

#include "attention_kernels.h"
#include "orthogonalization_kernels.h"

static const Kernels NAME(kernels) = {
    {NAME(gelu_bfloat16), NAME(gelu_float32)},
    {NAME(gelu_gradient_bfloat16), NAME(gelu_gradient_float32)},
    {NAME(cross_entropy_bfloat16), NAME(cross_entropy_float32)},
    NAME(softmax),
    NAME(softmax_gradient),
    NAME(attend_head),
    NAME(attend_head_gradient),
    NAME(orthogonalize),
};

#undef EACH
#undef NAME
#undef JOIN
#undef JOIN_
#undef ISA
#undef PARTS
#undef WIDTH
#undef MULTIPLY_ADD
