/* The arithmetic of a decode step for one instruction set.
 *
 * decode.c includes this file once for each supported instruction set, after it has defined
 *   ISA, PARTS        as in vectors.h; a panel's 16 sums are the 16 lanes
 *   ROWS, PANELS      the rows and panels whose sums fit into the registers together
 *   DOT4(sum, w, a)   sum[j] plus the products of 16 / PARTS x 4 weights with 4 activations, in integers
 *   DOT2(sum, w, a)   optional: sum[j] plus the products of two 16-bit weights with two activations
 *   WIDE_ROWS         the rows whose sums fit into the registers together with DOT2
 *   FLOAT_ROWS        the rows whose sums with PANELS panels of floats fit into the registers
 *   WEIGHT_OFFSET     what DOT4 leaves added to the weights: 128 or 0
 *   MULTIPLY_ADD(a, b, sum)  sum + a * b of vectors, rounded once where the processor can
 *
 * In int8, all instruction sets add the same floats in the same order, and round each product and each sum, so that they
 * give the same logits, bit for bit. Only the products with float32 matrices are fused with their sums.
 */

#include "vectors.h"

/* The sums of the lanes of four vectors, each as in total. */
static inline f32x4 NAME(four_totals)(const f32x4 *rows) {
    f32x4 low = SHUFFLE(rows[0], rows[1], 0, 4, 1, 5), low2 = SHUFFLE(rows[2], rows[3], 0, 4, 1, 5);
    f32x4 high = SHUFFLE(rows[0], rows[1], 2, 6, 3, 7), high2 = SHUFFLE(rows[2], rows[3], 2, 6, 3, 7);
    return (SHUFFLE(low, low2, 0, 1, 4, 5) + SHUFFLE(low, low2, 2, 3, 6, 7)) +
           (SHUFFLE(high, high2, 0, 1, 4, 5) + SHUFFLE(high, high2, 2, 3, 6, 7));
}

/* Adds n / LANES * LANES products into 16 lanes; returns their number. `fused` is a constant: whether each is added in
 * one instruction, with one rounding. */
static inline __attribute__((always_inline)) int64_t NAME(add_lanes)(
    NAME(floats) *lanes, const float *a, const float *b, int64_t n, const int fused) {
    NAME(floats) sums[2 * PARTS] = {{0}};
#define ADD(p, at) \
    sums[p] = fused ? MULTIPLY_ADD(NAME(load)(a + at), NAME(load)(b + at), sums[p]) \
                    : sums[p] + NAME(load)(a + at) * NAME(load)(b + at)
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int p = 0; p < 2 * PARTS; p++) ADD(p, i + p * WIDTH);
    for (; i + LANES <= n; i += LANES)
        for (int p = 0; p < PARTS; p++) ADD(p, i + p * WIDTH);
#undef ADD
    for (int p = 0; p < PARTS; p++) lanes[p] = sums[p] + sums[PARTS + p];
    return i;
}

/* The sum of n products. */
static inline __attribute__((always_inline)) float NAME(add_products)(
    const float *a, const float *b, int64_t n, const int fused) {
    NAME(floats) lanes[PARTS];
    int64_t i = NAME(add_lanes)(lanes, a, b, n, fused);
    float sum = NAME(total)(lanes);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static inline float NAME(dot)(const float *a, const float *b, int64_t n) { return NAME(add_products)(a, b, n, 0); }

/* y = (x - mean) / sqrt(variance + eps) * weight + bias. */
static void NAME(layer_norm)(float *y, const float *x, const float *weight, const float *bias, int64_t n, float eps) {
    NAME(floats) sums[PARTS] = {{0}};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int p = 0; p < PARTS; p++) sums[p] += NAME(load)(x + i + p * WIDTH);
    float mean = NAME(total)(sums);
    for (; i < n; i++) mean += x[i];
    mean /= n;
    for (i = 0; i < n; i++) y[i] = x[i] - mean;
    float scale = 1 / sqrtf(NAME(dot)(y, y, n) / n + eps);
    for (i = 0; i < n; i++) y[i] = y[i] * scale * weight[i] + bias[i];
}

/* GPT-2's GELU, in place: 0.5 x (1 + tanh u) = x / (1 + e^(-2u)), with u = sqrt(2/pi) (x + 0.044715 x^3). */
static void NAME(gelu)(float *x, int64_t n) {
    float rest[WIDTH];
    for (int64_t i = 0; i < n; i += WIDTH) {
        int64_t count = n - i < WIDTH ? n - i : WIDTH;
        float *p = x + i;
        if (count < WIDTH) {
            memset(rest, 0, sizeof rest);
            p = memcpy(rest, x + i, count * sizeof *x);
        }
        NAME(floats) v = NAME(load)(p);
        NAME(floats) u = 0.79788456f * (v + 0.044715f * v * v * v);
        NAME(store)(p, v / (1.0f + NAME(exponential)(-2.0f * u)));
        if (count < WIDTH) memcpy(x + i, rest, count * sizeof *x);
    }
}

/* A query's products with KEYS keys, whose sums fit into the registers together, in the order of add_lanes, and folded.
 * `width` is a multiple of LANES. */
#define KEYS (PARTS < 4 ? 4 / PARTS : 1)
static inline __attribute__((always_inline)) void NAME(fold_scores)(
    f32x4 *folded, const float *q, const float *keys, int64_t width) {
    NAME(floats) sums[KEYS][2 * PARTS] = {{{0}}};
#define ADD(p) \
    NAME(floats) part = NAME(load)(q + i + p * WIDTH); \
    for (int k = 0; k < KEYS; k++) sums[k][p] += part * NAME(load)(keys + k * width + i + p * WIDTH)
    int64_t i = 0;
    for (; i + 2 * LANES <= width; i += 2 * LANES)
        for (int p = 0; p < 2 * PARTS; p++) { ADD(p); }
    for (; i < width; i += LANES)
        for (int p = 0; p < PARTS; p++) { ADD(p); }
#undef ADD
    for (int k = 0; k < KEYS; k++) {
        NAME(floats) lanes[PARTS];
        for (int p = 0; p < PARTS; p++) lanes[p] = sums[k][p] + sums[k][PARTS + p];
        folded[k] = NAME(fold)(lanes);
    }
}

/* scores = e^(scores - their largest) of `length` scores; returns their sum. The room is rounded up to LANES. */
static float NAME(exponentials)(float *scores, int64_t length) {
    int64_t padded = (length + LANES - 1) / LANES * LANES;
    float highest = -INFINITY;
    for (int64_t s = length; s < padded; s++) scores[s] = -INFINITY;
    NAME(floats) maxima = NAME(load)(scores), totals[PARTS] = {{0}};
    for (int64_t s = WIDTH; s < padded; s += WIDTH) maxima = NAME(larger)(maxima, NAME(load)(scores + s));
    for (int j = 0; j < WIDTH; j++) highest = maxima[j] > highest ? maxima[j] : highest;
    for (int64_t s = 0; s < padded; s += LANES)
        for (int p = 0; p < PARTS; p++) {
            NAME(floats) weights = NAME(exponential)(NAME(load)(scores + s + p * WIDTH) - highest);
            totals[p] += weights;
            NAME(store)(scores + s + p * WIDTH, weights);
        }
    return NAME(total)(totals);
}

/* One query's attention to the `length` positions of one head: y = softmax(q K^T / sqrt(width)) V. */
static void NAME(attend_once)(
    float *y, const float *q, const float *keys, const float *values, int64_t length, int64_t width, float *scores) {
    int64_t d = 0, s = 0;
    float scale = 1 / sqrtf((float)width);
    for (; width % LANES == 0 && s + 4 <= length; s += 4) { /* the same sums as below, four at a time */
        f32x4 folded[4];
        for (int k = 0; k < 4; k += KEYS) NAME(fold_scores)(folded + k, q, keys + (s + k) * width, width);
        f32x4 four = NAME(four_totals)(folded) * scale;
        memcpy(scores + s, &four, sizeof four);
    }
    for (; s < length; s++) scores[s] = NAME(dot)(q, keys + s * width, width) * scale;
    float sum = NAME(exponentials)(scores, length);
    for (; d + 4 * LANES <= width; d += 4 * LANES) {
        NAME(floats) sums[4 * PARTS] = {{0}};
        for (int64_t s = 0; s < length; s++)
            for (int p = 0; p < 4 * PARTS; p++) sums[p] += scores[s] * NAME(load)(values + s * width + d + p * WIDTH);
        for (int p = 0; p < 4 * PARTS; p++) NAME(store)(y + d + p * WIDTH, sums[p] / sum);
    }
    for (; d + LANES <= width; d += LANES) {
        NAME(floats) sums[PARTS] = {{0}};
        for (int64_t s = 0; s < length; s++)
            for (int p = 0; p < PARTS; p++) sums[p] += scores[s] * NAME(load)(values + s * width + d + p * WIDTH);
        for (int p = 0; p < PARTS; p++) NAME(store)(y + d + p * WIDTH, sums[p] / sum);
    }
    for (; d < width; d++) {
        float a = 0;
        for (int64_t s = 0; s < length; s++) a += scores[s] * values[s * width + d];
        y[d] = a / sum;
    }
}

/* The transpose of `count` keys, (width, LANES); the last key also fills the columns from `count` on. */
static void NAME(transpose_keys)(float *columns, const float *keys, int64_t count, int64_t width) {
    for (int64_t s = 0; s < LANES; s += 4) {
        const float *rows[4];
        for (int k = 0; k < 4; k++) rows[k] = keys + (s + k < count ? s + k : count - 1) * width;
        for (int64_t d = 0; d < width; d += 4) {
            f32x4 a, b, c, e;
            memcpy(&a, rows[0] + d, sizeof a);
            memcpy(&b, rows[1] + d, sizeof b);
            memcpy(&c, rows[2] + d, sizeof c);
            memcpy(&e, rows[3] + d, sizeof e);
            f32x4 low = SHUFFLE(a, b, 0, 4, 1, 5), low2 = SHUFFLE(c, e, 0, 4, 1, 5);
            f32x4 high = SHUFFLE(a, b, 2, 6, 3, 7), high2 = SHUFFLE(c, e, 2, 6, 3, 7);
            f32x4 turned[4] = {SHUFFLE(low, low2, 0, 1, 4, 5), SHUFFLE(low, low2, 2, 3, 6, 7),
                               SHUFFLE(high, high2, 0, 1, 4, 5), SHUFFLE(high, high2, 2, 3, 6, 7)};
            for (int k = 0; k < 4; k++) memcpy(columns + (d + k) * LANES + s, turned + k, sizeof a);
        }
    }
}

/* A query's products with LANES keys, times `scale`. The keys are the lanes here, but each key's products are added in
 * the order of add_lanes and total. */
static inline __attribute__((always_inline)) void NAME(column_scores)(
    float *scores, const float *q, const float *columns, const int64_t width, float scale) {
    for (int p = 0; p < PARTS; p++) {
        NAME(floats) folded[4], quarters[4], sums[2];
#define PRODUCT(i) (q[i] * NAME(load)(columns + (i) * LANES + p * WIDTH))
        PRAGMA(GCC unroll 4)
        for (int j = 0; j < 4; j++) {
            for (int k = 0; k < 4; k++) {
                int64_t i = 4 * k + j;
                sums[0] = PRODUCT(i);
                sums[1] = width > LANES ? PRODUCT(i + LANES) : (NAME(floats)){0};
                for (i += 2 * LANES; i + LANES < width; i += 2 * LANES) {
                    sums[0] += PRODUCT(i);
                    sums[1] += PRODUCT(i + LANES);
                }
                if (i < width) sums[0] += PRODUCT(i);
                quarters[k] = sums[0] + sums[1];
            }
            folded[j] = (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
        }
#undef PRODUCT
        NAME(store)(scores + p * WIDTH, ((folded[0] + folded[1]) + (folded[2] + folded[3])) * scale);
    }
}

/* The outputs y of `queries` queries += the values of positions [from, to) times their scores, for `vectors` vectors of
 * columns. */
#define VALUES 4
static inline __attribute__((always_inline)) void NAME(add_values)(
    const int queries, const int vectors, float *y, int64_t stride, const float *scores, int64_t padded,
    const float *values, int64_t from, int64_t to, int64_t width) {
    NAME(floats) sums[2][VALUES];
    for (int r = 0; r < queries; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = NAME(load)(y + r * stride + v * WIDTH);
    for (int64_t s = from; s < to; s++)
        for (int v = 0; v < vectors; v++) {
            NAME(floats) value = NAME(load)(values + s * width + v * WIDTH);
            for (int r = 0; r < queries; r++) sums[r][v] += scores[r * padded + s] * value;
        }
    for (int r = 0; r < queries; r++)
        for (int v = 0; v < vectors; v++) NAME(store)(y + r * stride + v * WIDTH, sums[r][v]);
}

/* The attention of `queries` queries of one sequence and head, the first of which attends to `length` positions and each
 * other to one more. Each has the same bits as alone. All queries read a block of keys or values while it is in the
 * cache. */
static void NAME(attend)(
    float *y, const float *q, int64_t queries, int64_t c, const float *keys, const float *values, int64_t length,
    int64_t width, float *scores, int64_t padded) {
    if (queries < TOGETHER || width % LANES) {
        for (int64_t r = 0; r < queries; r++)
            NAME(attend_once)(y + r * c, q + r * 3 * c, keys, values, length + r, width, scores);
        return;
    }
    float scale = 1 / sqrtf((float)width), sums[QUERIES], *columns = scores + queries * padded;
    int64_t all = length + queries - 1;
    for (int64_t s = 0; s < all; s += LANES) {
        NAME(transpose_keys)(columns, keys + s * width, all - s < LANES ? all - s : LANES, width);
        for (int64_t r = s < length ? 0 : s - length + 1; r < queries; r++)
            if (width == 64)
                NAME(column_scores)(scores + r * padded + s, q + r * 3 * c, columns, 64, scale);
            else
                NAME(column_scores)(scores + r * padded + s, q + r * 3 * c, columns, width, scale);
    }
    for (int64_t r = 0; r < queries; r++) {
        sums[r] = NAME(exponentials)(scores + r * padded, length + r);
        memset(y + r * c, 0, width * sizeof *y);
    }
    for (int64_t from = 0; from < all; from += BLOCK)
        for (int64_t pair, r = 0; r < queries; r += 1 + pair) {
            int64_t end = from + BLOCK, to = length + r < end ? length + r : end, d = 0;
            pair = PARTS < 4 && r + 1 < queries && from < to; /* their sums fit into the registers together */
#define ADD(n, vectors, row, first, last) \
    NAME(add_values)(n, vectors, y + (row) * c + d, c, scores + (row) * padded, padded, values + d, first, last, width)
#define ADD_BOTH(vectors) \
    if (pair) { \
        ADD(2, vectors, r, from, to); \
        if (to < end) ADD(1, vectors, r + 1, to, to + 1); \
    } else if (from < to) \
        ADD(1, vectors, r, from, to)
            for (; d + VALUES * WIDTH <= width; d += VALUES * WIDTH) { ADD_BOTH(VALUES); }
            for (; d < width; d += LANES) { ADD_BOTH(PARTS); }
#undef ADD_BOTH
#undef ADD
        }
    for (int64_t r = 0; r < queries; r++)
        for (int64_t d = 0; d < width; d += WIDTH) NAME(store)(y + r * c + d, NAME(load)(y + r * c + d) / sums[r]);
}

/* Columns [from, to) of y = x W^T + bias for every row of x, with W stored by rows, (out, in), by dot products. */
static void NAME(multiply_rows)(float *y, const float *x, int64_t rows, const Matrix *m, int64_t from, int64_t to) {
    const float *weight = m->weight;
    for (int64_t o = from; o < to; o++)
        for (int64_t r = 0; r < rows; r++)
            y[r * m->out + o] =
                NAME(add_products)(weight + o * m->in, x + r * m->in, m->in, 1) + (m->bias ? m->bias[o] : 0);
}

/* Every row of y += the products of `inputs` inputs with their weights, which are as many streams. The weights are
 * loaded once for all rows. `inputs` is a constant. */
static inline __attribute__((always_inline)) void NAME(add_columns)(
    const int inputs, float *y, const float *x, int64_t rows, const Matrix *m, int64_t first, int64_t from, int64_t to) {
    int64_t out = m->out, o = from;
    const float *weight = (const float *)m->weight + first * out;
    x += first;
    for (; o + LANES <= to; o += LANES)
        for (int p = 0; p < PARTS; p++) {
            NAME(floats) weights[2 * STREAMS];
            for (int i = 0; i < inputs; i++) {
                if (p == 0) __builtin_prefetch(weight + (inputs + i) * out + o, 0, 2); /* the stream's continuation */
                weights[i] = NAME(load)(weight + i * out + o + p * WIDTH);
            }
            for (int64_t r = 0; r < rows; r++) {
                NAME(floats) sum = NAME(load)(y + r * out + o + p * WIDTH);
                for (int i = 0; i < inputs; i++) sum = MULTIPLY_ADD(NAME(broadcast)(x[r * m->in + i]), weights[i], sum);
                NAME(store)(y + r * out + o + p * WIDTH, sum);
            }
        }
    for (; o < to; o++)
        for (int64_t r = 0; r < rows; r++)
            for (int i = 0; i < inputs; i++) y[r * out + o] += x[r * m->in + i] * weight[i * out + o];
}

/* `rows` rows and PANELS panels of y += the products of `inputs` inputs with their weights, (inputs, PANELS * 16). All
 * sums are in registers: `rows` is a constant. */
static inline __attribute__((always_inline)) void NAME(float_tile)(
    const int rows, float *y, const float *x, const Matrix *m, const float *weights, int64_t inputs) {
    enum { VECTORS = PANELS * PARTS };
    NAME(floats) sums[FLOAT_ROWS * VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sums[r * VECTORS + v] = NAME(load)(y + r * m->out + v * WIDTH);
    for (int64_t i = 0; i < inputs; i++, weights += PANELS * LANES) {
        NAME(floats) loaded[VECTORS];
        for (int v = 0; v < VECTORS; v++) loaded[v] = NAME(load)(weights + v * WIDTH);
        for (int r = 0; r < rows; r++) {
            NAME(floats) one = NAME(broadcast)(x[r * m->in + i]);
            for (int v = 0; v < VECTORS; v++)
                sums[r * VECTORS + v] = MULTIPLY_ADD(one, loaded[v], sums[r * VECTORS + v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) NAME(store)(y + r * m->out + v * WIDTH, sums[r * VECTORS + v]);
}

/* Many rows of y += x W^T for PANELS panels of outputs, with W stored by columns. The weights of INPUTS inputs are copied
 * first, so that they are next to each other; those of AHEAD inputs later are fetched from memory meanwhile. The floats
 * are added in the same order as in add_columns. */
static void NAME(add_tiles)(float *y, const float *x, int64_t rows, const Matrix *m, int64_t from) {
    float weights[INPUTS * PANELS * LANES];
    for (int64_t begin = 0; begin < m->in; begin += INPUTS) {
        int64_t inputs = m->in - begin < INPUTS ? m->in - begin : INPUTS, row = 0;
        for (int64_t i = 0; i < inputs; i++) {
            const float *source = (const float *)m->weight + (begin + i) * m->out + from;
            for (int64_t o = 0; o < PANELS * LANES; o += LANES) __builtin_prefetch(source + AHEAD * m->out + o, 0, 2);
            memcpy(weights + i * PANELS * LANES, source, PANELS * LANES * sizeof(float));
        }
#define TILE(rows) NAME(float_tile)(rows, y + row * m->out + from, x + row * m->in + begin, m, weights, inputs)
        for (; row + FLOAT_ROWS <= rows; row += FLOAT_ROWS) TILE(FLOAT_ROWS);
        for (; FLOAT_ROWS > 4 && row + 4 <= rows; row += 4) TILE(4);
        for (; row < rows; row++) TILE(1);
#undef TILE
    }
}

/* The same as multiply_rows with W stored by columns, (in, out), as in a Hugging Face file. For many rows, the outputs
 * are divided into blocks, so that the sums of all rows stay in the cache. */
static void NAME(multiply_columns)(float *y, const float *x, int64_t rows, const Matrix *m, int64_t from, int64_t to) {
    int64_t block = SUMS / rows / LANES * LANES;
    block = block < 2 * LANES ? 2 * LANES : block;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = from; o < to; o++) y[r * m->out + o] = m->bias ? m->bias[o] : 0;
    if (rows >= TILED) /* for fewer rows, copying the weights takes longer than it saves */
        for (; from + PANELS * LANES <= to; from += PANELS * LANES) NAME(add_tiles)(y, x, rows, m, from);
    for (; from < to; from += block) {
        int64_t end = from + block < to ? from + block : to, i = 0;
        if (rows >= 16) /* half as often, each row's sums are loaded and stored; fewer rows are faster with 8 streams */
            for (; i + 2 * STREAMS <= m->in; i += 2 * STREAMS)
                NAME(add_columns)(2 * STREAMS, y, x, rows, m, i, from, end);
        for (; i + STREAMS <= m->in; i += STREAMS) NAME(add_columns)(STREAMS, y, x, rows, m, i, from, end);
        for (; i < m->in; i++) NAME(add_columns)(1, y, x, rows, m, i, from, end);
    }
}

/* The weights of 16 inputs and 16 outputs, a vector of outputs for each input; 0 outside the matrix. */
static inline void NAME(gather)(f32x16 *vectors, const Matrix *m, int64_t i, int64_t o) {
    const float *weight = m->weight;
    int64_t inputs = m->in - i < LANES ? m->in - i : LANES, outputs = m->out - o < LANES ? m->out - o : LANES;
    float tile[LANES][LANES];
    if (inputs < LANES || outputs < LANES) memset(tile, 0, sizeof tile);
    if (m->form == BY_COLUMNS)
        for (int64_t k = 0; k < inputs; k++) memcpy(tile[k], weight + (i + k) * m->out + o, outputs * sizeof(float));
    else
        for (int64_t j = 0; j < outputs; j++)
            for (int64_t k = 0; k < inputs; k++) tile[k][j] = weight[(o + j) * m->in + i + k];
    memcpy(vectors, tile, sizeof tile);
}

/* Packs the panel of 16 outputs from `o` on to int8; see minigpt_pack. */
static void NAME(pack)(uint8_t *packed, float *scale, const Matrix *m, int64_t o) {
    const float round = 12582912.0f; /* as in nearest */
    int64_t padded = (m->in + 3) / 4 * 4;
    uint8_t *panel = packed + o * padded;
    f32x16 weights[LANES], inverse;
    i32x16 largest = {0};
    for (int64_t i = 0; i < m->in; i += LANES) {
        NAME(gather)(weights, m, i, o);
        for (int k = 0; k < LANES; k++) {
            i32x16 size = (i32x16)weights[k] & 0x7fffffff, above = size > largest;
            largest = (size & above) | (largest & ~above);
        }
    }
    for (int j = 0; j < LANES; j++) {
        float one;
        scale[o + j] = int8_scale(largest[j], &one);
        inverse[j] = one;
    }
    for (int64_t i = 0; i < padded; i += LANES) {
        NAME(gather)(weights, m, i, o);
        for (int k = 0; k < LANES && i + k < padded; k += 4) {
            u32x16 four = {0}; /* four weights of each output, the first in the lowest byte */
            for (int b = 0; b < 4; b++) {
                f32x16 scaled = weights[k + b] * inverse;
                u32x16 integer = (u32x16)(scaled + round) - (u32x16)((f32x16){0} + round) + 128;
                four |= (integer & 255) << (8 * b);
            }
            memcpy(panel + (i + k) * LANES, &four, sizeof four);
        }
    }
}

/* Quantizes activations to int8 with a scale for each BLOCK: x is about values * scale. A block's sum of products
 * starts with its `offsets`, which cancel the weights' offset. */
static void NAME(quantize)(Quantized *q, int64_t row, const float *x, int64_t n) {
    int8_t *values = q->values + row * q->stride;
    memset(values, 0, q->stride);
    for (int64_t block = 0; block < q->blocks; block++) {
        int64_t from = block * BLOCK, to = from + BLOCK < n ? from + BLOCK : n;
        int32_t largest = 0, sum = 0;
        float inverse;
        for (int64_t i = from; i < to; i++) largest = magnitude(x[i]) > largest ? magnitude(x[i]) : largest;
        q->scales[row * q->blocks + block] = int8_scale(largest, &inverse);
        for (int64_t i = from; i < to; i++) {
            values[i] = (int8_t)nearest(x[i] * inverse);
            sum += values[i];
        }
        q->offsets[row * q->blocks + block] = -WEIGHT_OFFSET * sum;
    }
}

/* y = x W^T + bias for `rows` rows and `panels` panels of 16 outputs each. Both are constants after inlining, so that
 * all sums are in registers: a panel's weights are read once for all rows, a row's activations once for all panels. */
static inline __attribute__((always_inline)) void NAME(tile)(
    const int rows, const int panels, float *y, const Quantized *x, int64_t row, const Matrix *m, int64_t from) {
    enum { MOST = PANELS * PARTS };
    const int parts = panels * PARTS;
    int64_t padded = (m->in + 3) / 4 * 4;
    const uint8_t *weight = (const uint8_t *)m->weight + from * padded;
    const int8_t *values = x->values + row * x->stride;
    const int32_t *offsets = x->offsets + row * x->blocks;
    const float *scales = x->scales + row * x->blocks;
    NAME(floats) sums[ROWS * MOST] = {{0}};
    for (int64_t block = 0; block < x->blocks; block++) {
        int64_t begin = block * BLOCK, end = begin + BLOCK < padded ? begin + BLOCK : padded;
        NAME(integers) products[ROWS * MOST];
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < parts; p++) products[r * MOST + p] = (NAME(integers)){0} + offsets[r * x->blocks + block];
        for (int64_t i = begin; i < end; i += 4)
            for (int r = 0; r < rows; r++)
                for (int p = 0; p < parts; p++) {
                    const uint8_t *w = weight + (p / PARTS * padded + i) * LANES + p % PARTS * 4 * WIDTH;
                    if (r == 0 && p % PARTS == 0) __builtin_prefetch(w + PREFETCH, 0, 2); /* once for each cache line */
                    products[r * MOST + p] = DOT4(products[r * MOST + p], w, values + r * x->stride + i);
                }
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < parts; p++)
                sums[r * MOST + p] +=
                    __builtin_convertvector(products[r * MOST + p], NAME(floats)) * scales[r * x->blocks + block];
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) {
            int64_t o = from + p * WIDTH, left = m->out - o;
            NAME(floats) scaled = sums[r * MOST + p] * NAME(load)(m->scale + o);
            float *target = y + (row + r) * m->out + o;
            if (left >= WIDTH)
                NAME(store)(target, m->bias ? NAME(load)(m->bias + o) + scaled : scaled);
            else
                for (int64_t j = 0; j < left; j++) target[j] = (m->bias ? m->bias[o + j] : 0) + scaled[j];
        }
}

#ifdef DOT2
/* For many rows: weights and activations are widened to 16 bits once, and then multiplied with DOT2, which needs fewer
 * instructions than DOT4. Of four inputs, DOT2 multiplies the first with the third, then the second with the fourth,
 * since these are the even and the odd bytes of 32 bits. */

typedef int16_t NAME(shorts) __attribute__((vector_size(WIDTH * sizeof(int32_t))));
typedef uint16_t NAME(unsigned_shorts) __attribute__((vector_size(WIDTH * sizeof(int32_t))));

/* The inputs of the block that begins at `begin`. */
static inline int64_t NAME(block_inputs)(int64_t begin, int64_t inputs) {
    return inputs - begin < BLOCK ? inputs - begin : BLOCK;
}

/* A panel's weights of `inputs` inputs: the even pairs of each block, then its odd pairs, of 16 outputs each. */
static void NAME(widen_weights)(NAME(integers) *wide, const uint8_t *panel, int64_t inputs) {
    for (int64_t begin = 0; begin < inputs; begin += BLOCK, wide += BLOCK / 2 * PARTS, panel += BLOCK * LANES) {
        int64_t half = NAME(block_inputs)(begin, inputs) / 4 * PARTS;
        for (int64_t i = 0; i < half; i++) {
            NAME(integers) fours;
            memcpy(&fours, panel + i * sizeof fours, sizeof fours);
            NAME(unsigned_shorts) bytes = (NAME(unsigned_shorts))(fours ^ (int32_t)0x80808080);
            wide[i] = (NAME(integers))((NAME(shorts))(bytes << 8) >> 8);
            wide[half + i] = (NAME(integers))((NAME(shorts))bytes >> 8);
        }
    }
}

/* One row's activations of `inputs` inputs, in the order of the weights. */
static void NAME(widen_activations)(int32_t *wide, const int8_t *values, int64_t inputs) {
    for (int64_t begin = 0; begin < inputs; begin += BLOCK, wide += BLOCK / 2, values += BLOCK) {
        int64_t half = NAME(block_inputs)(begin, inputs) / 4;
        for (int64_t i = 0; i < half; i++) {
            uint32_t four;
            memcpy(&four, values + 4 * i, sizeof four);
            uint32_t first = (int32_t)(four << 24) >> 24, second = (int32_t)(four << 16) >> 24;
            uint32_t third = (int32_t)(four << 8) >> 24, fourth = (int32_t)four >> 24;
            wide[i] = (int32_t)((first & 0xffff) | third << 16);
            wide[half + i] = (int32_t)((second & 0xffff) | fourth << 16);
        }
    }
}

/* Adds the products of `inputs` widened inputs to the sums of `rows` rows and a panel. `rows` is a constant. */
static inline __attribute__((always_inline)) void NAME(wide_tile)(
    const int rows, float *sums, int64_t stride, const NAME(integers) *weights, const int32_t *activations,
    const float *scales, int64_t blocks, int64_t inputs) {
    for (int64_t begin = 0; begin < inputs; begin += BLOCK, scales++) {
        int64_t pairs = NAME(block_inputs)(begin, inputs) / 2;
        NAME(integers) products[WIDE_ROWS * PARTS] = {{0}};
        for (int64_t i = 0; i < pairs; i++)
            for (int r = 0; r < rows; r++)
                for (int p = 0; p < PARTS; p++)
                    products[r * PARTS + p] =
                        DOT2(products[r * PARTS + p], weights[i * PARTS + p],
                             (NAME(integers)){0} + activations[r * (CHUNK / 2) + i]);
        weights += BLOCK / 2 * PARTS;
        activations += BLOCK / 2;
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < PARTS; p++) {
                float *sum = sums + r * stride + p * WIDTH;
                NAME(floats) scaled = __builtin_convertvector(products[r * PARTS + p], NAME(floats)) * scales[r * blocks];
                NAME(store)(sum, NAME(load)(sum) + scaled);
            }
    }
}

/* The same as multiply_int8, for at most INT8_ROWS rows. */
static void NAME(multiply_wide)(float *y, const Quantized *x, int64_t rows, const Matrix *m, int64_t from, int64_t to) {
    NAME(integers) weights[CHUNK / 2 * PARTS];
    int32_t activations[INT8_ROWS * CHUNK / 2];
    float rest[INT8_ROWS * LANES] = {0}; /* the sums of a last panel that `y` has no room for */
    int64_t padded = (m->in + 3) / 4 * 4, whole = to / LANES * LANES;
    for (int64_t r = 0; r < rows; r++) memset(y + r * m->out + from, 0, (to - from) * sizeof *y);
    for (int64_t begin = 0; begin < padded; begin += CHUNK) {
        int64_t inputs = padded - begin < CHUNK ? padded - begin : CHUNK;
        for (int64_t r = 0; r < rows; r++)
            NAME(widen_activations)(activations + r * (CHUNK / 2), x->values + r * x->stride + begin, inputs);
        for (int64_t row, o = from; o < to; o += LANES) {
            float *sums = o < whole ? y + o : rest;
            int64_t stride = o < whole ? m->out : LANES;
            NAME(widen_weights)(weights, (const uint8_t *)m->weight + o * padded + begin * LANES, inputs);
#define TILE(rows) \
    NAME(wide_tile)(rows, sums + row * stride, stride, weights, activations + row * (CHUNK / 2), \
                    x->scales + row * x->blocks + begin / BLOCK, x->blocks, inputs)
            for (row = 0; row + WIDE_ROWS <= rows; row += WIDE_ROWS) TILE(WIDE_ROWS);
            for (; row + 2 <= rows; row += 2) TILE(2);
            if (row < rows) TILE(1);
#undef TILE
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        if (whole < to) memcpy(y + r * m->out + whole, rest + r * LANES, (to - whole) * sizeof *y);
        for (int64_t o = from; o < to; o++) {
            float scaled = y[r * m->out + o] * m->scale[o];
            y[r * m->out + o] = m->bias ? m->bias[o] + scaled : scaled;
        }
    }
}
#endif

/* Outputs [from, to) of y = x W^T + bias from int8 weights; `from` is a multiple of LANES. */
static void NAME(multiply_int8)(float *y, const Quantized *x, int64_t rows, const Matrix *m, int64_t from, int64_t to) {
#ifdef DOT2
    if (rows >= 4 * WIDE_ROWS) { /* for fewer rows, widening the weights takes longer than it saves */
        NAME(multiply_wide)(y, x, rows, m, from, to);
        return;
    }
#endif
    int64_t row;
    for (int64_t panels, o = from; o < to; o += panels * LANES) {
        panels = rows > 1 && o + PANELS * LANES <= to ? PANELS : 1; /* for one row, one stream of weights is fastest */
#define TILE(rows) (panels > 1 ? NAME(tile)(rows, PANELS, y, x, row, m, o) : NAME(tile)(rows, 1, y, x, row, m, o))
        for (row = 0; row + ROWS <= rows; row += ROWS) TILE(ROWS);
        switch (rows - row) {
            case 1: if (ROWS > 1) TILE(1); break;
            case 2: if (ROWS > 2) TILE(2); break;
            case 3: if (ROWS > 3) TILE(3); break;
            case 4: if (ROWS > 4) TILE(4); break;
            case 5: if (ROWS > 5) TILE(5); break;
        }
#undef TILE
    }
}

static const Kernels NAME(kernels) = {
    NAME(layer_norm), NAME(gelu), NAME(attend), NAME(multiply_rows), NAME(multiply_columns), NAME(pack),
    NAME(quantize), NAME(multiply_int8),
};

#undef NAME
#undef JOIN
#undef JOIN_
#undef ISA
#undef DOT4
#undef DOT2
#undef WIDE_ROWS
#undef FLOAT_ROWS
#undef KEYS
#undef VALUES
#undef MULTIPLY_ADD
#undef WEIGHT_OFFSET
#undef PARTS
#undef WIDTH
#undef ROWS
#undef PANELS
