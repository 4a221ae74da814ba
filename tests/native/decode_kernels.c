/* Compares every kernel of decode.c, for every instruction set of the processor, with the same arithmetic in double
 * precision. Prints the largest error of each as a fraction of the bound that rounding in float32 allows, and fails if one
 * is above 1.
 *
 * The bounds are those of Higham, Accuracy and Stability of Numerical Algorithms, chapter 3. They hold for every order
 * of the additions, with and without fused multiply-add. U is the unit roundoff; GAMMA(n) bounds the relative error of
 * n operations in a row.
 */

#include <stdio.h>
#include "decode.c"

#define U 0x1p-24
#define GAMMA(n) ((n) * U / (1 - (n) * U))
#define TINY 0x1p-120 /* absolute: the exponential has a smallest result, e^-87, and subnormal numbers have few digits */

static uint32_t state;
static double worst; /* the largest error so far, as a fraction of its bound */
static int failed;

static double number(double size) {
    state = state * 1664525 + 1013904223;
    return ((double)(state >> 8) / (1 << 24) - 0.5) * 2 * size;
}

static float *numbers(int64_t count, double size) {
    float *p = malloc(count * sizeof *p);
    for (int64_t i = 0; i < count; i++) p[i] = (float)number(size);
    return p;
}

static double larger(double a, double b) { return a > b ? a : b; }

static void check(double found, double exact, double bound) {
    double error = fabs(found - exact) / (bound + TINY);
    if (!(error <= worst)) worst = error; /* NaN too */
}

static void layer_norm(int64_t n) {
    float *x = numbers(n, 2), *weight = numbers(n, 1), *bias = numbers(n, 1), *y = numbers(n, 0);
    double mean = 0, size = 0, spread = 0, variance = 0, eps = 1e-5f;
    for (int64_t i = 0; i < n; i++) x[i] += 3, mean += x[i] / (double)n, size += fabs(x[i]) / (double)n;
    for (int64_t i = 0; i < n; i++) {
        double d = x[i] - mean;
        spread += fabs(d) / (double)n, variance += d * d / (double)n;
    }
    kernels->layer_norm(y, x, weight, bias, n, (float)eps);
    double shift = GAMMA(n) * size; /* the error of the mean */
    for (int64_t i = 0; i < n; i++) {
        double d = x[i] - mean, scale = 1 / sqrt(variance + eps), moved = shift + U * fabs(d);
        double relative = (GAMMA(n + 3) * variance + 2 * (shift + U * spread) * spread) * scale * scale / 2;
        double exact = d * scale * weight[i] + bias[i];
        check(y[i], exact, fabs(weight[i]) * scale * (moved + fabs(d) * (relative + 6 * U)) + 2 * U * fabs(exact));
    }
    free(x), free(weight), free(bias), free(y);
}

/* The relative error of the exponential, whose polynomial has 2e-7, for an argument with the error `moved`. */
static double of_exponential(double moved) { return moved + 4 * U; }

static void gelu(int64_t n) {
    float *x = numbers(n, 12), *y = malloc(n * sizeof *y);
    memcpy(y, x, n * sizeof *y);
    kernels->gelu(y, n);
    for (int64_t i = 0; i < n; i++) {
        double v = x[i], z = -2 * sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v), e = exp(z), exact = v / (1 + e);
        check(y[i], exact, fabs(exact) * (e / (1 + e) * of_exponential(GAMMA(8) * fabs(z)) + 2 * U));
    }
    free(x), free(y);
}

/* The output y of a query's attention to `length` positions. */
static void check_attention(
    const float *y, const float *q, const float *keys, const float *values, int64_t length, int64_t width) {
    double *weights = malloc(length * sizeof *weights), highest = -INFINITY, total = 0, moved = 0;
    for (int64_t s = 0; s < length; s++) {
        double dot = 0, size = 0, scale = 1 / sqrt((double)width);
        for (int64_t d = 0; d < width; d++) {
            dot += (double)q[d] * keys[s * width + d];
            size += fabs((double)q[d] * keys[s * width + d]);
        }
        weights[s] = dot * scale;
        highest = larger(highest, weights[s]);
        moved = larger(moved, GAMMA(width + 3) * size * scale);
    }
    for (int64_t s = 0; s < length; s++) {
        moved = larger(moved, U * (highest - weights[s]));
        total += weights[s] = exp(weights[s] - highest);
    }
    double relative = 2 * of_exponential(3 * moved) + GAMMA(2 * length + LANES); /* of a weight and of their sum */
    for (int64_t d = 0; d < width; d++) {
        double exact = 0, size = 0;
        for (int64_t s = 0; s < length; s++) {
            exact += weights[s] / total * values[s * width + d];
            size += weights[s] / total * fabs(values[s * width + d]);
        }
        check(y[d], exact, relative * size);
    }
    free(weights);
}

/* Queries together; each must have the same bits as alone. */
static void attend(int64_t length, int64_t queries, int64_t width) {
    int64_t all = length + queries - 1, padded = rounded(all);
    float *q = numbers(queries * 3 * width, 3), *keys = numbers(all * width, 1), *values = numbers(all * width, 1);
    float *y = numbers(queries * width, 0), *alone = numbers(width, 0), *scores = numbers(queries * padded + width * LANES, 0);
    kernels->attend(y, q, queries, width, keys, values, length, width, scores, padded);
    for (int64_t r = 0; r < queries; r++) {
        const float *query = q + r * 3 * width;
        check_attention(y + r * width, query, keys, values, length + r, width);
        kernels->attend(alone, query, 1, width, keys, values, length + r, width, scores, padded);
        if (memcmp(alone, y + r * width, width * sizeof *y)) worst = INFINITY;
    }
    free(q), free(keys), free(values), free(y), free(alone), free(scores);
}

static Matrix matrix(int64_t out, int64_t in, int64_t form) {
    return (Matrix){numbers(out * in, 1), NULL, out % 2 ? numbers(out, 1) : NULL, in, out, form};
}

static double weight(const Matrix *m, int64_t o, int64_t i) {
    const float *weights = m->weight;
    return m->form == BY_ROWS ? weights[o * m->in + i] : weights[i * m->out + o];
}

static void release(Matrix m) { free((void *)m.weight), free((void *)m.scale), free((void *)m.bias); }

static void multiply_float(int64_t rows, int64_t out, int64_t in, int64_t form) {
    Matrix m = matrix(out, in, form);
    float *x = numbers(rows * in, 1), *y = numbers(rows * out, 0);
    int64_t half = out / 2; /* two threads' parts */
    for (int part = 0; part < 2; part++)
        (form == BY_ROWS ? kernels->multiply_rows : kernels->multiply_columns)(
            y, x, rows, &m, part ? half : 0, part ? out : half);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double exact = m.bias ? m.bias[o] : 0, size = fabs(exact);
            for (int64_t i = 0; i < in; i++) {
                exact += weight(&m, o, i) * x[r * in + i];
                size += fabs(weight(&m, o, i) * x[r * in + i]);
            }
            check(y[r * out + o], exact, GAMMA(in + 2) * size);
        }
    float *alone = numbers(out, 0); /* many rows have the same bits as each of them alone */
    for (int64_t r = 0; form == BY_COLUMNS && r < rows; r++) {
        for (int part = 0; part < 2; part++)
            kernels->multiply_columns(alone, x + r * in, 1, &m, part ? half : 0, part ? out : half);
        if (memcmp(alone, y + r * out, out * sizeof *alone)) worst = INFINITY;
    }
    release(m), free(x), free(y), free(alone);
}

static void multiply_rows(int64_t rows, int64_t out, int64_t in) { multiply_float(rows, out, in, BY_ROWS); }
static void multiply_columns(int64_t rows, int64_t out, int64_t in) { multiply_float(rows, out, in, BY_COLUMNS); }

/* An int8 value and its scale: the scale is rounded once; a value lies half an integer from what it stands for, or more
 * by the rounding of the scale's inverse and of the product with it, which is at most 127. */
static void check_int8(int value, float scale, double of, double largest) {
    check(scale, largest / 127, U * largest / 127);
    check(value, largest > 0 ? of * 127 / largest : 0, 0.5 + 127 * GAMMA(3));
}

static int unpacked(const Matrix *packed, int64_t o, int64_t i) {
    int64_t padded = (packed->in + 3) / 4 * 4;
    const uint8_t *panel = (const uint8_t *)packed->weight + o / LANES * LANES * padded;
    return panel[i / 4 * 4 * LANES + o % LANES * 4 + i % 4] - 128;
}

static Matrix packed(const Matrix *m) {
    int64_t outputs = (m->out + LANES - 1) / LANES * LANES, inputs = (m->in + 3) / 4 * 4;
    uint8_t *values = malloc(outputs * inputs);
    float *scale = malloc(outputs * sizeof *scale), *bias = NULL;
    for (int64_t o = 0; o < m->out; o += LANES) kernels->pack(values, scale, m, o);
    if (m->bias) bias = memcpy(malloc(m->out * sizeof *bias), m->bias, m->out * sizeof *bias);
    return (Matrix){values, scale, bias, m->in, m->out, INT8};
}

static void pack(int64_t rows, int64_t out, int64_t in) {
    Matrix m = matrix(out, in, rows % 2 ? BY_ROWS : BY_COLUMNS), p = packed(&m);
    for (int64_t o = 0; o < out; o++) {
        double largest = 0;
        for (int64_t i = 0; i < in; i++) largest = larger(largest, fabs(weight(&m, o, i)));
        for (int64_t i = 0; i < (in + 3) / 4 * 4; i++)
            check_int8(unpacked(&p, o, i), p.scale[o], i < in ? weight(&m, o, i) : 0, largest);
    }
    release(m), release(p);
}

static Quantized quantized(const float *x, int64_t rows, int64_t n) {
    Quantized q = {NULL, NULL, NULL, (n + 3) / 4 * 4, (n + BLOCK - 1) / BLOCK};
    q.values = malloc(rows * q.stride);
    q.scales = malloc(rows * q.blocks * sizeof *q.scales);
    q.offsets = malloc(rows * q.blocks * sizeof *q.offsets);
    for (int64_t r = 0; r < rows; r++) kernels->quantize(&q, r, x + r * n, n);
    return q;
}

static void release_quantized(Quantized q) { free(q.values), free(q.scales), free(q.offsets); }

static void quantize_rows(int64_t rows, int64_t out, int64_t n) {
    (void)out;
    float *x = numbers(rows * n, 5);
    Quantized q = quantized(x, rows, n);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t block = 0; block < q.blocks; block++) {
            int64_t from = block * BLOCK, end = from + BLOCK < q.stride ? from + BLOCK : q.stride;
            double largest = 0;
            for (int64_t i = from; i < end && i < n; i++) largest = larger(largest, fabs(x[r * n + i]));
            for (int64_t i = from; i < end; i++)
                check_int8(q.values[r * q.stride + i], q.scales[r * q.blocks + block], i < n ? x[r * n + i] : 0, largest);
        }
    free(x), release_quantized(q);
}

/* Many rows have the same bits as each of them alone. */
static void check_rows_alone(const float *y, const Quantized *q, int64_t rows, const Matrix *m) {
    float *alone = numbers(m->out, 0);
    for (int64_t r = 0; r < rows; r++) {
        Quantized one = {q->values + r * q->stride, q->scales + r * q->blocks, q->offsets + r * q->blocks, q->stride,
                         q->blocks};
        kernels->multiply_int8(alone, &one, 1, m, 0, m->out);
        if (memcmp(alone, y + r * m->out, m->out * sizeof *alone)) worst = INFINITY;
    }
    free(alone);
}

/* The products are exact in integers, so only the sum over the blocks, the scales and the bias round. */
static void multiply_int8(int64_t rows, int64_t out, int64_t in) {
    Matrix m = matrix(out, in, BY_ROWS), p = packed(&m);
    float *x = numbers(rows * in, 1), *y = numbers(rows * out, 0);
    Quantized q = quantized(x, rows, in);
    int64_t half = out / 2 / LANES * LANES; /* two threads' parts */
    kernels->multiply_int8(y, &q, rows, &p, 0, half);
    kernels->multiply_int8(y, &q, rows, &p, half, out);
    check_rows_alone(y, &q, rows, &p);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double exact = p.bias ? p.bias[o] : 0, size = fabs(exact);
            for (int64_t block = 0; block < q.blocks; block++) {
                double products = 0, scale = (double)q.scales[r * q.blocks + block] * p.scale[o];
                for (int64_t i = block * BLOCK; i < in && i < (block + 1) * BLOCK; i++)
                    products += unpacked(&p, o, i) * q.values[r * q.stride + i];
                exact += products * scale, size += fabs(products) * scale;
            }
            check(y[r * out + o], exact, GAMMA(q.blocks + 3) * size);
        }
    release(m), release(p), free(x), free(y), release_quantized(q);
}

static void report(const char *set, const char *kernel) {
    printf("%s %s %.3f\n", set, kernel, worst);
    failed |= !(worst <= 1);
    worst = 0;
}

int main(void) {
    static const int64_t lengths[] = {1, 3, 15, 16, 17, 31, 32, 33, 64, 65, 127, 200, 768};
    static const int64_t contexts[] = {1, 3, 15, 16, 17, 33, 200}, widths[] = {1, 7, 16, 31, 63, 64, 127};
    static const int64_t queries[] = {1, 2, 9, 20}; /* the last two together */
    static const int64_t shapes[][3] = {/* rows, outputs, inputs */
        {1, 1, 1}, {2, 5, 3}, {3, 16, 4}, {4, 17, 64}, {5, 37, 65}, {6, 64, 63}, {7, 101, 130}, {13, 48, 192}, {1, 70, 300},
        {24, 37, 257}, {29, 64, 520}, {32, 80, 300}, {47, 97, 64}, {128, 33, 330},
    };
    static const struct { const char *name; void (*check)(int64_t, int64_t, int64_t); } products[] = {
        {"multiply_rows", multiply_rows}, {"multiply_columns", multiply_columns}, {"pack", pack},
        {"quantize", quantize_rows}, {"multiply_int8", multiply_int8},
    };
    enum { QUERY_COUNTS = sizeof queries / sizeof *queries };
    enum { LENGTHS = sizeof lengths / sizeof *lengths, CONTEXTS = sizeof contexts / sizeof *contexts };
    enum { WIDTHS = sizeof widths / sizeof *widths, SHAPES = sizeof shapes / sizeof *shapes };
    for (int set = 0; set < N_SETS; set++) {
        const char *name = minigpt_use(SETS[set].name);
        if (name == NULL) continue;
        state = 1;
        for (int i = 0; i < LENGTHS; i++) layer_norm(lengths[i]);
        report(name, "layer_norm");
        for (int i = 0; i < LENGTHS; i++) gelu(lengths[i]);
        report(name, "gelu");
        for (int i = 0; i < CONTEXTS; i++)
            for (int j = 0; j < WIDTHS; j++)
                for (int k = 0; k < QUERY_COUNTS; k++) attend(contexts[i], queries[k], widths[j]);
        report(name, "attend");
        for (size_t p = 0; p < sizeof products / sizeof *products; p++) {
            for (int i = 0; i < SHAPES; i++) products[p].check(shapes[i][0], shapes[i][1], shapes[i][2]);
            report(name, products[p].name);
        }
    }
    return failed;
}
