/* Vectors of floats for one instruction set. A file that includes this one has defined
 *   ISA    the suffix of this instruction set's functions
 *   PARTS  the registers that hold 16 lanes
 *   MULTIPLY_ADD(a, b, sum)  sum + a * b of vectors, rounded once where the processor can
 * A loop keeps 16 lanes in PARTS vectors of the register's size. One vector of 16 lanes, which the compilers also accept,
 * passes through memory in each iteration where a register is smaller.
 */

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(f) JOIN(f, ISA)
#define WIDTH (LANES / PARTS)

typedef int32_t NAME(integers) __attribute__((vector_size(WIDTH * sizeof(int32_t))));
typedef float NAME(floats) __attribute__((vector_size(WIDTH * sizeof(float))));

static inline NAME(floats) NAME(load)(const float *p) {
    NAME(floats) v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void NAME(store)(float *p, NAME(floats) v) { memcpy(p, &v, sizeof v); }

/* The sums of the first, second, third and fourth lane of each of 4 quarters of 16 lanes. */
static inline f32x4 NAME(fold)(const NAME(floats) *parts) {
    f32x4 quarters[4];
    memcpy(quarters, parts, sizeof quarters);
    return (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
}

/* The sum of 16 lanes. */
static inline float NAME(total)(const NAME(floats) *parts) {
    f32x4 sum = NAME(fold)(parts);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The larger value of each lane; b if one is NaN. */
static inline NAME(floats) NAME(larger)(NAME(floats) a, NAME(floats) b) {
    NAME(integers) first = a > b;
    return (NAME(floats))(((NAME(integers))a & first) | ((NAME(integers))b & ~first));
}

/* The smaller value of each lane; b if one is NaN. */
static inline NAME(floats) NAME(smaller)(NAME(floats) a, NAME(floats) b) {
    NAME(integers) first = a < b;
    return (NAME(floats))(((NAME(integers))a & first) | ((NAME(integers))b & ~first));
}

static inline NAME(floats) NAME(broadcast)(float x) { return x - (NAME(floats)){0}; }

/* x[j] = e^x[j] for `count` vectors, with a relative error of about 2e-7: x = k ln 2 + r, so e^x = 2^k e^r, with a polynomial
 * for e^r over |r| <= ln 2 / 2. Each operation needs the result of the one before, and takes several cycles; so each is done for
 * all vectors before the next one. `count` and `fused` are constants. `fused`: whether products and sums are one instruction,
 * with one rounding; without it, all instruction sets give the same bits. Source: Cephes. */
static inline __attribute__((always_inline)) void NAME(exponentiate)(NAME(floats) *x, const int count, const int fused) {
#define ADD(a, b, sum) (fused ? MULTIPLY_ADD(a, b, sum) : (a) * (b) + (sum))
#define EACH for (int j = 0; j < count; j++)
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves no bits for a fraction */
    NAME(floats) zero = {0}, k[MOST_VECTORS], r[MOST_VECTORS], p[MOST_VECTORS];
    EACH x[j] = NAME(larger)(zero - 87.0f, x[j]);
    EACH x[j] = NAME(smaller)(zero + 88.0f, x[j]);
    EACH k[j] = ADD(x[j], zero + 1.44269504f, zero + round) - round;
    EACH r[j] = ADD(k[j], zero - 0.693359375f, x[j]);
    EACH r[j] = ADD(k[j], zero + 2.12194440e-4f, r[j]);
    EACH p[j] = ADD(r[j], zero + 1.9875691500e-4f, zero + 1.3981999507e-3f);
    EACH p[j] = ADD(p[j], r[j], zero + 8.3334519073e-3f);
    EACH p[j] = ADD(p[j], r[j], zero + 4.1665795894e-2f);
    EACH p[j] = ADD(p[j], r[j], zero + 1.6666665459e-1f);
    EACH p[j] = ADD(p[j], r[j], zero + 5.0000001201e-1f);
    EACH p[j] = ADD(p[j] * r[j], r[j], r[j]) + 1.0f;
    EACH x[j] = p[j] * (NAME(floats))((__builtin_convertvector(k[j], NAME(integers)) + 127) << 23);
#undef EACH
#undef ADD
}

/* e^x, with the same bits on every instruction set. */
static inline NAME(floats) NAME(exponential)(NAME(floats) x) {
    NAME(exponentiate)(&x, 1, 0);
    return x;
}
