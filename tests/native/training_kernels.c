/* Compares every kernel of training.c, for every instruction set of the processor, with the same arithmetic in double
 * precision, at difficult lengths and in exactly as much memory as each needs. Prints the largest error of each as a
 * fraction of its bound, and fails if one is above 1.
 *
 * Rounding to the nearest bfloat16 changes a result by at most 2^-8 of it. The arithmetic in float32 adds an error of at
 * most 1e-5 of the terms that the result is a sum of. AMX multiplies numbers in bfloat16, which changes each term.
 */

#include <stdio.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#include "training.c"

/* Plain C with vectors as long as AVX-512's, so that the buffers are tested with them on every processor. */
#define ISA wide
#define PARTS 1
#define MULTIPLY_ADD(a, b, sum) ((sum) + (a) * (b))
#include "training_kernels.h"

static uint32_t state;
static double worst; /* the largest error so far, as a fraction of its bound */
static double error_of_terms = 1e-5;
static int failed, dtype; /* `dtype` is that of all numbers */

/* Arithmetic in double precision, which is always optimized: instrumented, it would take most of the time. */
#define EXACT static __attribute__((optimize("O2"), no_sanitize("address", "undefined")))

/* Not inlined, because gcc would warn of negative counts that do not occur. */
static __attribute__((noinline)) void *zeros(int64_t count, int64_t size) { return calloc(count, size); }

/* Memory without contents. For AMX it ends at a page that nobody may use, and begins as NaN: its instructions are none that a
 * sanitizer sees, and this memory is never released. */
static __attribute__((noinline)) void *memory(int64_t bytes) {
#if defined(HAVE_AMX)
    if (kernels == &kernels_amx) {
        int64_t page = sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
        char *first = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (first == MAP_FAILED || mprotect(first + whole, page, PROT_NONE)) abort();
        return memset(first + whole - bytes, 0xff, bytes);
    }
#endif
    return malloc(bytes);
}

static void release(void *p) {
#if defined(HAVE_AMX)
    if (kernels == &kernels_amx) return;
#endif
    free(p);
}

static void *room(int64_t count) { return memory(count * size_of(dtype)); }

EXACT float number(const void *x, int64_t i) {
    if (dtype == FLOAT32) return ((const float *)x)[i];
    uint32_t b = (uint32_t)((const uint16_t *)x)[i] << 16;
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

/* `count` numbers up to `size`, with a few large ones. */
EXACT void *numbers(int64_t count, double size) {
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

EXACT double larger(double a, double b) { return a > b ? a : b; }

/* The largest error may be NaN, which is larger than all. */
EXACT void record(double error) {
    if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
}

/* Compares a result with its value, a sum of terms of this size. */
EXACT void compare(double found, double exact, double terms, double rounding) {
    record(fabs(found - exact) / (rounding * fabs(exact) + error_of_terms * terms + 1e-37));
}

/* The same for number i of `found`, which may have been rounded to bfloat16. */
EXACT void check(const void *found, int64_t i, double exact, double terms) {
    compare(number(found, i), exact, terms, dtype == FLOAT32 ? 0 : 0x1p-8);
}

/* `count` floats with the precision of the dtype. */
static float *floats(int64_t count, double size) {
    void *p = numbers(count, size);
    float *f = memory(count * sizeof *f);
    for (int64_t i = 0; i < count; i++) f[i] = number(p, i);
    release(p);
    return f;
}

/* Layer norm of a few more rows than are summed at a time, and its gradient. An error of a row's mean or deviation is a part
 * of its largest number. */
static void layer_norm(int64_t width) {
    int64_t rows = NORM_ROWS + 3, n = rows * width;
    float *x = floats(n, 2), *weight = floats(width, 1), *bias = floats(width, 1), epsilon = 1e-3f;
    float *statistics = zeros(2 * rows, sizeof *x), *dx = zeros(n, sizeof *dx);
    float *dparameters = zeros(2 * width, sizeof *dx), *sums = zeros(2 * 2 * width, sizeof *sums);
    double *exact = zeros(4 * width, sizeof *exact), *terms = exact + 2 * width; /* of weight and bias */
    void *y = room(n), *dy = numbers(n, 1);
    minigpt_layer_norm(dtype, y, statistics, x, weight, bias, rows, width, epsilon, 2);
    minigpt_layer_norm_gradient(dtype, dx, dparameters, dy, statistics, x, weight, rows, width, sums, 2);
    for (int64_t first = 0; first < n; first += width) {
        const float *row = x + first;
        double mean = 0, variance = 0, largest = 0, average = 0, slope = 0, size = 0;
        for (int64_t i = 0; i < width; i++) mean += row[i] / (double)width, largest = larger(largest, fabs(row[i]));
        for (int64_t i = 0; i < width; i++) variance += (row[i] - mean) * (row[i] - mean) / width;
        double inverse = 1 / sqrt(variance + epsilon), most = largest * inverse;
        for (int64_t i = 0; i < width; i++) {
            double z = (row[i] - mean) * inverse, gradient = number(dy, first + i), g = gradient * weight[i];
            check(y, first + i, z * weight[i] + bias[i], most * fabs(weight[i]) + fabs(bias[i]));
            average += g / width, slope += g * z / width, size += fabs(g) / width;
            exact[i] += gradient * z, terms[i] += fabs(gradient) * most;
            exact[width + i] += gradient, terms[width + i] += fabs(gradient);
        }
        for (int64_t i = 0; i < width; i++) {
            double z = (row[i] - mean) * inverse, g = number(dy, first + i) * weight[i];
            compare(dx[first + i], (g - average - z * slope) * inverse, (fabs(g) + size * (1 + most * most)) * inverse, 0);
        }
    }
    for (int64_t i = 0; i < 2 * width; i++) compare(dparameters[i], exact[i], terms[i], 0);
    release(x), release(weight), release(bias), release(statistics), release(dx), release(dparameters), release(sums), release(exact), release(y);
    release(dy);
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
    release(x), release(dy), release(y);
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
    release(x), release(y), release(dy), release(dx), release(buffer);
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
            check(gradient, r * stride + i, p[i] - goal, p[i] + goal + 1e-25); /* numbers near 0 become 0 */
        }
        record(fabs(losses[r] + log(totals[r]) - (log_total - sum)) / (1e-5 * (1 + size + fabs(log_total))));
        for (int64_t i = n; i < stride && r < rows - 1; i++)
            if (number(gradient, r * stride + i) != number(logits, r * stride + i)) worst = INFINITY; /* the padding is not written */
    }
    targets[2] = n; /* outside the vocabulary */
    if (!minigpt_cross_entropy(dtype, gradient, NULL, targets, rows, n, stride, 0, losses, totals, buffer, 2)) worst = INFINITY;
    release(logits), release(teacher), release(gradient), release(buffer), release(p), release(q);
}

/* Attention of two sequences and heads, and its gradient. */
EXACT void attention(int64_t length, int64_t width) {
    enum { BATCH = 2, HEADS = 2 };
    int64_t c = HEADS * width, n = BATCH * length * c;
    int64_t size = minigpt_attention_buffer(length, width, 0), gradient_size = minigpt_attention_buffer(length, width, 1);
    void *qkv = numbers(3 * n, 1), *dy = numbers(n, 1), *y = room(n), *dqkv = room(3 * n);
    float *logs = memory(BATCH * HEADS * length * sizeof *logs), *buffer = memory(2 * size * sizeof *buffer);
    float *gradient_buffer = memory(2 * gradient_size * sizeof *buffer);
    double *p = malloc(length * length * sizeof *p), *ds = malloc(length * length * sizeof *ds);
    double *size_of_ds = malloc(length * length * sizeof *ds), scale = 1 / sqrt(width);
    double *size_of_p = malloc(length * length * sizeof *p);
#if defined(HAVE_AMX)
    if (kernels == &kernels_amx && dtype == BFLOAT16 && attention_uses_tiles(length, width))
        error_of_terms = 0x1p-8; /* weights and gradients of scores are rounded */
#endif
    minigpt_attention(dtype, y, logs, qkv, BATCH, length, HEADS, width, buffer, 2);
    minigpt_attention_gradient(dtype, dqkv, dy, logs, qkv, BATCH, length, HEADS, width, gradient_buffer, 2);
    for (int64_t i = 0; i < BATCH * HEADS; i++) {
        int64_t row = i / HEADS * length, column = i % HEADS * width;
#define Q(t, d) (double)number(qkv, (row + (t)) * 3 * c + column + (d))
#define K(t, d) (double)number(qkv, (row + (t)) * 3 * c + c + column + (d))
#define V(t, d) (double)number(qkv, (row + (t)) * 3 * c + 2 * c + column + (d))
#define DY(t, d) (double)number(dy, (row + (t)) * c + column + (d))
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
    error_of_terms = 1e-5;
    release(qkv), release(dy), release(y), release(dqkv), release(logs), release(buffer), release(gradient_buffer), release(p), release(ds);
    release(size_of_ds), release(size_of_p);
}

/* The orthogonalization of two matrices, compared with the polynomials of X one after the other in double precision. */
EXACT void orthogonalization(int64_t rows, int64_t columns) {
    static const float polynomials[] = {3, -4, 2, 2.5, -2, 0.5};
    int64_t n = rows * columns, m = rows < columns ? rows : columns, k = rows < columns ? columns : rows;
    void *x = numbers(2 * n, 1), *y = room(2 * n);
    float *buffer = memory(minigpt_orthogonalization_buffer(dtype, rows, columns) * sizeof *buffer);
    double *wide = malloc(n * sizeof *wide), *next = malloc(n * sizeof *next), *gram = malloc(m * m * sizeof *gram);
    double *square = malloc(m * m * sizeof *square);
    minigpt_orthogonalize(dtype, y, x, 2, rows, columns, polynomials, 2, 1.02f, buffer, 1);
    for (int64_t first = 0; first < 2 * n; first += n) {
        double norm = 0;
#define AT(i, t) (rows > columns ? (t) * columns + (i) : (i) * columns + (t)) /* of element (i, t) of X, (m, k) */
        for (int64_t i = 0; i < n; i++) norm += (double)number(x, first + i) * number(x, first + i);
        for (int64_t i = 0; i < m; i++)
            for (int64_t t = 0; t < k; t++) wide[i * k + t] = number(x, first + AT(i, t)) / sqrt(norm);
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
            for (int64_t t = 0; t < k; t++) check(y, first + AT(i, t), wide[i * k + t], 1);
    }
    release(x), release(y), release(buffer), release(wide), release(next), release(gram), release(square);
}

/* The sum of two vectors. */
static void add(int64_t n) {
    float *x = floats(n, 1), *z = zeros(n, sizeof *z);
    void *y = numbers(n, 2);
    minigpt_add(dtype, z, x, y, n, 2);
    for (int64_t i = 0; i < n; i++) compare(z[i], (double)x[i] + number(y, i), fabs(x[i]) + fabs(number(y, i)), 0);
    release(x), release(y), release(z);
}

#if defined(HAVE_AMX)
/* The sum of n products a[a_first + i * a_step] b[b_first + i * b_step], and that of their magnitudes in *terms. */
EXACT double products(
    const void *a, int64_t a_first, int64_t a_step, const void *b, int64_t b_first, int64_t b_step, int64_t n,
    double *terms) {
    double sum = 0;
    *terms = 0;
    for (int64_t i = 0; i < n; i++) {
        double term = (double)number(a, a_first + i * a_step) * number(b, b_first + i * b_step);
        sum += term, *terms += fabs(term);
    }
    return sum;
}

/* A linear layer and its gradients: the weights are in bfloat16 already, so that only sums are rounded. */
EXACT void linear(int64_t rows, int64_t in, int64_t out, int threads) {
    void *x = numbers(rows * in, 1), *y = room(rows * out), *dy = numbers(rows * out, 1), *dx = room(rows * in);
    void *rounded = numbers(out * in, 1);
    float *weight = memory(out * in * sizeof *weight), *bias = floats(out, 1), *dweight = memory(out * in * sizeof *bias);
    float *dbias = memory(out * sizeof *bias);
    uint16_t *buffer = memory(minigpt_linear_buffer(rows, in, out, threads) * sizeof *buffer);
    for (int64_t i = 0; i < out * in; i++) weight[i] = number(rounded, i);
    minigpt_linear(y, x, weight, bias, rows, in, out, buffer, threads);
    minigpt_linear_gradients(dx, NULL, NULL, dy, x, weight, rows, in, out, buffer, threads);
    minigpt_linear_gradients(NULL, dweight, dbias, dy, x, weight, rows, in, out, buffer, threads);
    for (int64_t r = 0; r < rows; r++) {
        double terms, sum;
        for (int64_t o = 0; o < out; o++) {
            sum = products(x, r * in, 1, rounded, o * in, 1, in, &terms);
            check(y, r * out + o, bias[o] + sum, fabs(bias[o]) + terms);
        }
        for (int64_t i = 0; i < in; i++) {
            sum = products(dy, r * out, 1, rounded, i, in, out, &terms);
            check(dx, r * in + i, sum, terms);
        }
    }
    for (int64_t o = 0; o < out; o++) {
        double sum = 0, terms = 0;
        for (int64_t r = 0; r < rows; r++) sum += number(dy, r * out + o), terms += fabs(number(dy, r * out + o));
        compare(dbias[o], sum, terms, 0);
        for (int64_t i = 0; i < in; i++) {
            sum = products(dy, o, out, x, i, in, rows, &terms);
            compare(dweight[o * in + i], sum, terms, 0);
        }
    }
    release(x), release(y), release(dy), release(dx), release(rounded), release(weight), release(bias), release(dweight), release(dbias), release(buffer);
}
#endif

/* Muon's momentum and the step along an update. */
static void momentum(int64_t n) {
    float *m = floats(n, 1), *before = malloc(n * sizeof *m), *gradient = floats(n, 2), *weight = floats(n, 1);
    float *moved = malloc(n * sizeof *m), beta = 0.9f;
    void *x = room(n);
    memcpy(before, m, n * sizeof *m), memcpy(moved, weight, n * sizeof *m);
    minigpt_momentum(dtype, x, m, gradient, n, beta, 2);
    minigpt_move(dtype, moved, x, n, 0.75f, -0.3f, 2);
    for (int64_t i = 0; i < n; i++) {
        double mean = before[i] + (1.0 - beta) * ((double)gradient[i] - before[i]), terms = fabs(before[i]) + fabs(gradient[i]);
        compare(m[i], mean, terms, 0);
        check(x, i, gradient[i] + beta * (mean - gradient[i]), terms);
        compare(moved[i], 0.75 * weight[i] - (double)0.3f * number(x, i), fabs(weight[i]) + fabs(number(x, i)), 0);
    }
    release(m), release(before), release(gradient), release(weight), release(moved), release(x);
}

/* Two updates of Adam, for `TOKENS` tokens of which every third has a gradient, and for `FEATURES_USED` features: feature f is
 * that of all tokens from f on. */
static void adam(int64_t width) {
    enum { TOKENS = 7, FEATURES_USED = 3 };
    static const int64_t positions[TOKENS] = {2, -1, -1, 0, -1, -1, 1};
    static const int64_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 2, 3, 4, 5, 6}, feature_starts[] = {0, 7, 13, 18};
    static const int64_t features[] = {0, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
    static const int64_t token_starts[] = {0, 1, 3, 6, 9, 12, 15, 18};
    const Adam coefficients = {0.9f, 0.99f, 0.02f, 1.5f, 1e-8f};
    int64_t n = TOKENS * width, m = FEATURES_USED * width;
    float *rows = floats(3 * width, 1), *weight = floats(n, 1), *mean = zeros(n, sizeof *mean), *square = zeros(n, sizeof *mean);
    float *means = zeros(m, sizeof *mean), *squares = zeros(m, sizeof *mean), *updates = zeros(m, sizeof *mean);
    float *buffer = zeros(2 * 2 * width, sizeof *buffer);
    double *exact = zeros(n, sizeof *exact), *moments = zeros(2 * (n + m), sizeof *exact), kept = 0.75f;
    Gradient gradient = {rows, positions, width};
    for (int64_t i = 0; i < n; i++) exact[i] = weight[i];
    for (int step = 0; step < 2; step++) {
        minigpt_adam_of_features(updates, means, squares, &gradient, tokens, feature_starts, FEATURES_USED, &coefficients, buffer, 2);
        minigpt_adam_of_tokens(
            weight, mean, square, &gradient, updates, features, token_starts, TOKENS, (float)kept, &coefficients, buffer, 2);
        for (int64_t i = 0; i < n; i++) exact[i] *= kept;
        for (int64_t one = 0; one < TOKENS + FEATURES_USED; one++) /* a token, or a feature */
            for (int64_t d = 0; d < width; d++) {
                int64_t f = one - TOKENS, from = f < 0 ? one : f, to = f < 0 ? one + 1 : TOKENS;
                double sum = 0, *moment = moments + 2 * (one * width + d);
                for (int64_t t = from; t < to; t++) sum += positions[t] < 0 ? 0 : rows[positions[t] * width + d];
                moment[0] = (double)0.9f * moment[0] + (1 - (double)0.9f) * sum;
                moment[1] = (double)0.99f * moment[1] + (1 - (double)0.99f) * sum * sum;
                for (int64_t t = from; t < to; t++)
                    exact[t * width + d] -= (double)0.02f * moment[0] / (sqrt(moment[1]) * 1.5 + 1e-8);
            }
    }
    for (int64_t i = 0; i < n; i++) compare(weight[i], exact[i], fabs(exact[i]) + 1, 0);
    release(rows), release(weight), release(mean), release(square), release(means), release(squares), release(updates), release(buffer);
    release(exact), release(moments);
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
#if defined(HAVE_AMX)
        {"avx512-amx", &kernels_amx, 3},
#endif
        {"avx512-vnni", &kernels_avx512, 1}, {"avx2", &kernels_avx2, 2},
#endif
        {"plain", &kernels_plain, 0}, {"plain", &kernels_wide, 0},
    };
    for (size_t set = 0; set < sizeof sets / sizeof *sets; set++) {
#if defined(__x86_64__)
        __builtin_cpu_init();
#if defined(HAVE_AMX)
        if (sets[set].has == 3 && !has_amx()) continue;
#endif
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
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) momentum(lengths[i]);
            momentum(2 * CHUNK + 5);
            report(sets[set].name, dtype == FLOAT32 ? "momentum_float32" : "momentum");
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) add(lengths[i]);
            add(2 * CHUNK + 5);
            report(sets[set].name, dtype == FLOAT32 ? "add_float32" : "add");
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) layer_norm(lengths[i]);
            report(sets[set].name, dtype == FLOAT32 ? "layer_norm_float32" : "layer_norm");
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (int with_teacher = 0; with_teacher < 2; with_teacher++) cross_entropy(lengths[i], with_teacher);
            report(sets[set].name, dtype == FLOAT32 ? "cross_entropy_float32" : "cross_entropy");
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (int64_t width = 16; width <= 48; width += 16) attention(lengths[i], width);
            report(sets[set].name, dtype == FLOAT32 ? "attention_float32" : "attention");
#if defined(HAVE_AMX)
            if (kernels == &kernels_amx && dtype == BFLOAT16) {
                linear(32, 32, 32, 2), linear(96, 64, 160, 1), linear(160, 128, 96, 3), linear(32, 1024, 576, 2);
                linear(160, 1024, 544, 2), linear(1024, 544, 96, 2); /* many rows are multiplied together */
                report(sets[set].name, "linear");
                for (int64_t length = 32; length <= 160; length += 32)
                    for (int64_t width = 32; width <= 96; width += 32) attention(length, width);
                report(sets[set].name, "attention_with_tiles");
                error_of_terms = 0x1p-5; /* several products, one after the other */
                for (int64_t rows = 32; rows <= 128; rows *= 2)
                    for (int64_t columns = 32; columns <= 96; columns += 32) orthogonalization(rows, columns);
                report(sets[set].name, "orthogonalization_with_tiles");
                error_of_terms = 1e-5;
            }
#endif
            if (dtype == FLOAT32) continue;
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) softmax(lengths[i]);
            report(sets[set].name, "softmax");
        }
        dtype = FLOAT32;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) adam(lengths[i]);
        report(sets[set].name, "adam");
        for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
            for (size_t j = 0; j < sizeof sides / sizeof *sides; j++) orthogonalization(sides[i], sides[j]);
        report(sets[set].name, "orthogonalization");
    }
    return failed;
}
