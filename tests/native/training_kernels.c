/* Compares every kernel of training.c, for every instruction set of the processor, with the same arithmetic in double
 * precision, at difficult lengths and in exactly as much memory as each needs. Prints the largest error of each as a
 * fraction of its bound, and fails if one is above 1.
 *
 * Rounding to the nearest bfloat16 changes a result by at most 2^-8 of it. The arithmetic in float32 adds an error of at
 * most 1e-5 of the terms that the result is a sum of.
 */

#include <stdio.h>
#include "training.c"

/* Plain C with vectors as long as AVX-512's, so that the buffers are tested with them on every processor. */
#define ISA wide
#define PARTS 1
#define MULTIPLY_ADD(a, b, sum) ((sum) + (a) * (b))
#include "training_kernels.h"

static uint32_t state;
static double worst; /* the largest error so far, as a fraction of its bound */
static int failed, dtype; /* `dtype` is that of all numbers */

static void *room(int64_t count) { return malloc(count * size_of(dtype)); }

static float number(const void *x, int64_t i) {
    if (dtype == FLOAT32) return ((const float *)x)[i];
    uint32_t b = (uint32_t)((const uint16_t *)x)[i] << 16;
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

/* `count` numbers up to `size`, with a few large ones. */
static void *numbers(int64_t count, double size) {
    void *p = room(count);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        float f = (float)(((double)(state >> 8) / (1 << 24) - 0.5) * 2 * size * (state % 37 ? 1 : 30));
        uint32_t b;
        memcpy(&b, &f, sizeof b);
        if (dtype == FLOAT32)
            ((float *)p)[i] = f;
        else
            ((uint16_t *)p)[i] = (uint16_t)(b >> 16);
    }
    return p;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Compares number i of `found`, of which `exact` is the value, a sum of terms of this size. */
static void check(const void *found, int64_t i, double exact, double terms) {
    double rounding = dtype == FLOAT32 ? 0 : 0x1p-8;
    double error = fabs(number(found, i) - exact) / (rounding * fabs(exact) + 1e-5 * terms + 1e-37);
    if (!(error <= worst)) worst = error; /* NaN too */
}

static double gate(double x) { return 1 / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))); }

static void gelu(int64_t n) {
    void *x = numbers(n, 3), *dy = numbers(n, 1), *y = room(n);
    minigpt_gelu(dtype, y, x, n, 2);
    for (int64_t i = 0; i < n; i++) check(y, i, number(x, i) * gate(number(x, i)), fabs(number(x, i)));
    minigpt_gelu_gradient(dtype, y, dy, x, n, 2);
    for (int64_t i = 0; i < n; i++) {
        double v = number(x, i), g = gate(v), du = sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * v * v);
        double slope = fabs(v * g * (1 - g) * 2 * du);
        check(y, i, number(dy, i) * (g + v * g * (1 - g) * 2 * du), fabs(number(dy, i)) * (1 + slope));
    }
    free(x), free(dy), free(y);
}

static void softmax(int64_t length) {
    int64_t heads = 3, count = heads * length * length;
    void *x = numbers(count, 2), *y = room(count), *dy = numbers(count, 1), *dx = room(count);
    float *buffer = malloc(2 * ((length + 63) / 64 * 64) * sizeof *buffer);
    double scale = 0.25;
    memcpy(y, x, count * size_of(dtype));
    minigpt_causal_softmax(y, heads, length, (float)scale, buffer, 2);
    minigpt_causal_softmax_gradient(dx, dy, y, heads, length, (float)scale, 2);
    for (int64_t row = 0; row < heads * length; row++) {
        int64_t keys = row % length + 1, first = row * length;
        double largest = -INFINITY, total = 0, sum = 0, size = 0;
        for (int64_t k = 0; k < keys; k++) largest = larger(largest, scale * number(x, first + k));
        for (int64_t k = 0; k < keys; k++) {
            total += exp(scale * number(x, first + k) - largest);
            sum += (double)number(y, first + k) * number(dy, first + k);
            size += fabs((double)number(y, first + k) * number(dy, first + k));
        }
        for (int64_t k = 0; k < length; k++) {
            double weight = k < keys ? exp(scale * number(x, first + k) - largest) / total : 0, p = number(y, first + k);
            check(y, first + k, weight, weight);
            check(dx, first + k, p * (number(dy, first + k) - sum) * scale, p * (fabs(number(dy, first + k)) + size) * scale);
        }
    }
    free(x), free(y), free(dy), free(dx), free(buffer);
}

/* The distribution of n logits. */
static void distribution(double *p, const void *logits, int64_t n, double *log_total) {
    double largest = -INFINITY, total = 0;
    for (int64_t i = 0; i < n; i++) largest = larger(largest, number(logits, i));
    for (int64_t i = 0; i < n; i++) p[i] = exp(number(logits, i) - largest);
    for (int64_t i = 0; i < n; i++) total += p[i];
    for (int64_t i = 0; i < n; i++) p[i] /= total;
    *log_total = largest + log(total);
}

static void cross_entropy(int64_t n, int with_teacher) {
    int64_t rows = 5, stride = n + 3, count = (rows - 1) * stride + n, targets[5];
    void *logits = numbers(count, 2), *teacher = numbers(count, 2), *gradient = room(count);
    float losses[5], totals[5], *buffer = malloc(2 * 2 * ((n + 63) / 64 * 64) * sizeof *buffer);
    double *p = malloc(n * sizeof *p), *q = malloc(n * sizeof *q), weight = with_teacher ? 0.375 : 0, ignored;
    for (int64_t r = 0; r < rows; r++) targets[r] = r * (n - 1) / 4;
    memcpy(gradient, logits, count * size_of(dtype));
    if (minigpt_cross_entropy(
            dtype, gradient, with_teacher ? teacher : NULL, targets, rows, n, stride, (float)weight, losses, totals, buffer,
            2))
        worst = INFINITY;
    for (int64_t r = 0; r < rows; r++) {
        double log_total, sum = 0, size = 0;
        distribution(p, at(logits, r * stride, dtype), n, &log_total);
        distribution(q, at(teacher, r * stride, dtype), n, &ignored);
        for (int64_t i = 0; i < n; i++) {
            double goal = (1 - weight) * (i == targets[r]) + weight * q[i];
            sum += goal * number(logits, r * stride + i), size += goal * fabs(number(logits, r * stride + i));
            check(gradient, r * stride + i, p[i] - goal, p[i] + goal);
        }
        double error = fabs(losses[r] + log(totals[r]) - (log_total - sum)) / (1e-5 * (1 + size + fabs(log_total)));
        if (!(error <= worst)) worst = error;
        for (int64_t i = n; i < stride && r < rows - 1; i++)
            if (number(gradient, r * stride + i) != number(logits, r * stride + i)) worst = INFINITY; /* the padding is not written */
    }
    targets[2] = n; /* outside the vocabulary */
    if (!minigpt_cross_entropy(dtype, gradient, NULL, targets, rows, n, stride, 0, losses, totals, buffer, 2)) worst = INFINITY;
    free(logits), free(teacher), free(gradient), free(buffer), free(p), free(q);
}

/* Attention of two sequences and heads in float32, and its gradient. */
static void attention(int64_t length, int64_t width) {
    enum { BATCH = 2, HEADS = 2 };
    int64_t c = HEADS * width, n = BATCH * length * c;
    int64_t size = minigpt_attention_buffer(length, width, 0), gradient_size = minigpt_attention_buffer(length, width, 1);
    float *qkv = numbers(3 * n, 1), *dy = numbers(n, 1), *y = room(n), *dqkv = room(3 * n);
    float *logs = room(BATCH * HEADS * length), *buffer = room(2 * size), *gradient_buffer = room(2 * gradient_size);
    double *p = malloc(length * length * sizeof *p), *ds = malloc(length * length * sizeof *ds);
    double *size_of_ds = malloc(length * length * sizeof *ds), scale = 1 / sqrt(width);
    double *size_of_p = malloc(length * length * sizeof *p);
    minigpt_attention(y, logs, qkv, BATCH, length, HEADS, width, buffer, 2);
    minigpt_attention_gradient(dqkv, dy, logs, qkv, BATCH, length, HEADS, width, gradient_buffer, 2);
    for (int64_t i = 0; i < BATCH * HEADS; i++) {
        int64_t row = i / HEADS * length, column = i % HEADS * width;
#define Q(t, d) (double)qkv[(row + (t)) * 3 * c + column + (d)]
#define K(t, d) (double)qkv[(row + (t)) * 3 * c + c + column + (d)]
#define V(t, d) (double)qkv[(row + (t)) * 3 * c + 2 * c + column + (d)]
#define DY(t, d) (double)dy[(row + (t)) * c + column + (d)]
        for (int64_t t = 0; t < length; t++) {
            double largest = -INFINITY, total = 0, sum = 0, terms = 0, most = 1;
            for (int64_t s = 0; s <= t; s++) {
                double score = 0, one = 0;
                for (int64_t d = 0; d < width; d++) score += Q(t, d) * K(s, d), one += fabs(Q(t, d) * K(s, d));
                p[t * length + s] = score * scale;
                largest = larger(largest, score * scale), most = larger(most, one * scale);
            }
            for (int64_t s = 0; s <= t; s++) total += p[t * length + s] = exp(p[t * length + s] - largest);
            for (int64_t s = 0; s <= t; s++) {
                double product = 0, one = 0;
                p[t * length + s] /= total;
                for (int64_t d = 0; d < width; d++) product += DY(t, d) * V(s, d), one += fabs(DY(t, d) * V(s, d));
                ds[t * length + s] = product, size_of_ds[t * length + s] = one;
                sum += p[t * length + s] * product, terms += p[t * length + s] * one;
            }
            for (int64_t s = 0; s < length; s++) {
                double weight = s > t ? p[t * length + s] = 0 : p[t * length + s];
                ds[t * length + s] = s > t ? 0 : weight * (ds[t * length + s] - sum) * scale;
                /* An error of a score changes its weight by as much; the smallest weight is e^-87. */
                size_of_ds[t * length + s] =
                    s > t ? 0 : weight * (size_of_ds[t * length + s] + terms) * scale * most + 1e-28;
                size_of_p[t * length + s] = weight * most + 1e-28;
            }
            for (int64_t d = 0; d < width; d++) {
                double exact = 0, one = 0;
                for (int64_t s = 0; s <= t; s++)
                    exact += p[t * length + s] * V(s, d), one += size_of_p[t * length + s] * fabs(V(s, d));
                check(y, (row + t) * c + column + d, exact, one);
            }
        }
        for (int64_t t = 0; t < length; t++)
            for (int64_t d = 0; d < width; d++) {
                double dq = 0, dk = 0, dv = 0, q_terms = 0, k_terms = 0, v_terms = 0;
                for (int64_t s = 0; s < length; s++) {
                    dq += ds[t * length + s] * K(s, d), q_terms += size_of_ds[t * length + s] * fabs(K(s, d));
                    dk += ds[s * length + t] * Q(s, d), k_terms += size_of_ds[s * length + t] * fabs(Q(s, d));
                    dv += p[s * length + t] * DY(s, d), v_terms += size_of_p[s * length + t] * fabs(DY(s, d));
                }
                int64_t at = (row + t) * 3 * c + column + d;
                check(dqkv, at, dq, q_terms);
                check(dqkv, at + c, dk, k_terms);
                check(dqkv, at + 2 * c, dv, v_terms);
            }
    }
    free(qkv), free(dy), free(y), free(dqkv), free(logs), free(buffer), free(gradient_buffer), free(p), free(ds);
    free(size_of_ds), free(size_of_p);
}

/* The orthogonalization of two matrices, compared with the polynomials of X one after the other in double precision. */
static void orthogonalization(int64_t rows, int64_t columns) {
    static const float polynomials[] = {3, -4, 2, 2.5, -2, 0.5};
    int64_t n = rows * columns, m = rows < columns ? rows : columns, k = rows < columns ? columns : rows;
    float *x = numbers(2 * n, 1), *y = room(2 * n);
    float *buffer = room(minigpt_orthogonalization_buffer(rows, columns));
    double *wide = malloc(n * sizeof *wide), *next = malloc(n * sizeof *next), *gram = malloc(m * m * sizeof *gram);
    double *square = malloc(m * m * sizeof *square);
    minigpt_orthogonalize(y, x, 2, rows, columns, polynomials, 2, 1.02f, buffer, 1);
    for (const float *from = x, *to = y; from < x + 2 * n; from += n, to += n) {
        double norm = 0;
#define AT(i, t) (rows > columns ? (t) * columns + (i) : (i) * columns + (t)) /* of element (i, t) of X, (m, k) */
        for (int64_t i = 0; i < n; i++) norm += (double)from[i] * from[i];
        for (int64_t i = 0; i < m; i++)
            for (int64_t t = 0; t < k; t++) wide[i * k + t] = from[AT(i, t)] / sqrt(norm);
        for (int pass = 0; pass < 3; pass++) { /* the rows' scale, then the polynomials */
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < m; j++) {
                    gram[i * m + j] = 0;
                    for (int64_t t = 0; t < k; t++) gram[i * m + j] += wide[i * k + t] * wide[j * k + t];
                }
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < m; j++) {
                    square[i * m + j] = 0;
                    for (int64_t l = 0; l < m && pass; l++) square[i * m + j] += gram[i * m + l] * gram[l * m + j];
                }
            for (int64_t i = 0; i < m; i++)
                for (int64_t t = 0; t < k; t++) {
                    double once = 0, twice = 0, sum = 0;
                    for (int64_t j = 0; j < m; j++) {
                        once += gram[i * m + j] * wide[j * k + t], twice += square[i * m + j] * wide[j * k + t];
                        sum += fabs(gram[i * m + j]);
                    }
                    const float *p = polynomials + 3 * (pass - 1);
                    next[i * k + t] = pass ? p[0] * wide[i * k + t] + p[1] * once + p[2] * twice
                                           : wide[i * k + t] / (1.02 * sqrt(larger(sum, 1e-12)));
                }
            memcpy(wide, next, n * sizeof *wide);
        }
        for (int64_t i = 0; i < m; i++)
            for (int64_t t = 0; t < k; t++) check(to, AT(i, t), wide[i * k + t], 1);
    }
    free(x), free(y), free(buffer), free(wide), free(next), free(gram), free(square);
}

static void report(const char *set, const char *kernel) {
    printf("%s %s %.3f\n", set, kernel, worst);
    failed |= !(worst <= 1);
    worst = 0;
}

int main(void) {
    static const int64_t lengths[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 127};
    static const int64_t sides[] = {1, 5, 6, 13, 32, 50};
    static const struct { const char *name; const Kernels *kernels; int has; } sets[] = {
#if defined(__x86_64__)
        {"avx512-vnni", &kernels_avx512, 1}, {"avx2", &kernels_avx2, 2},
#endif
        {"plain", &kernels_plain, 0}, {"plain", &kernels_wide, 0},
    };
    for (size_t set = 0; set < sizeof sets / sizeof *sets; set++) {
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (sets[set].has == 1 && !(__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))) continue;
        if (sets[set].has == 2 && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) continue;
#endif
        minigpt_training_use(sets[set].name);
        if (kernels != sets[set].kernels && sets[set].kernels != &kernels_wide) return 2;
        kernels = sets[set].kernels;
        state = 1;
        for (dtype = 0; dtype < DTYPES; dtype++) {
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) gelu(lengths[i]);
            gelu(2 * CHUNK + 5);
            report(sets[set].name, dtype == FLOAT32 ? "gelu_float32" : "gelu");
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (int with_teacher = 0; with_teacher < 2; with_teacher++) cross_entropy(lengths[i], with_teacher);
            report(sets[set].name, dtype == FLOAT32 ? "cross_entropy_float32" : "cross_entropy");
            if (dtype == FLOAT32) continue;
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) softmax(lengths[i]);
            report(sets[set].name, "softmax");
        }
        dtype = FLOAT32;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int64_t width = 16; width <= 48; width += 16) attention(lengths[i], width);
        report(sets[set].name, "attention");
        for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
            for (size_t j = 0; j < sizeof sides / sizeof *sides; j++) orthogonalization(sides[i], sides[j]);
        report(sets[set].name, "orthogonalization");
    }
    return failed;
}
