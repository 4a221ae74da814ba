/* Causal attention of one head and its gradient, for one instruction set; included by training_kernels.h.
 *
 * A query attends to the keys up to its own position, so half of each (length, length) matrix is never computed. Products
 * are tiles whose sums stay in the registers. All arithmetic is in float32; what is read and written has a `dtype`.
 * Sources: Vaswani et al. 2017, equation 1; Dao et al. 2022, "FlashAttention", appendix B.2 (the gradient).
 *
 * Below, q, k, v and y are rows of `width` numbers, one per position; `width` is a multiple of LANES. Where an argument
 * ends in _stride, its rows begin that many numbers apart. `padded` is the length rounded up to ROW_MULTIPLE, the row length of
 * the matrices (length, padded).
 */

enum { NAME(TILE_COLUMNS) = 2 * WIDTH };
_Static_assert(ROW_MULTIPLE % NAME(TILE_COLUMNS) == 0, "the buffers have room for whole tiles");

/* `rows` x `vectors` vectors of c = the sum over k < depth of column k of A times row k of B, with A's element (r, k) at
 * a[r * a_row + k * a_column]. `rows` and `vectors` are constants: the sums fit into the registers. */
static inline __attribute__((always_inline)) void NAME(tile)(
    const int rows, const int vectors, float *c, int64_t c_stride, const float *a, int64_t a_row, int64_t a_column,
    const float *b, int64_t b_stride, int64_t depth) {
    NAME(floats) sums[TILE_ROWS][2] = {{{0}}};
    for (int64_t k = 0; k < depth; k++) {
        NAME(floats) loaded[2];
        for (int v = 0; v < vectors; v++) loaded[v] = NAME(load)(b + k * b_stride + v * WIDTH);
        for (int r = 0; r < rows; r++) {
            NAME(floats) one = NAME(broadcast)(a[r * a_row + k * a_column]);
            for (int v = 0; v < vectors; v++) sums[r][v] = MULTIPLY_ADD(one, loaded[v], sums[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) NAME(store)(c + r * c_stride + v * WIDTH, sums[r][v]);
}

/* The same for up to TILE_ROWS rows and n columns, a multiple of WIDTH. */
static void NAME(multiply)(
    int64_t rows, int64_t n, float *c, int64_t c_stride, const float *a, int64_t a_row, int64_t a_column,
    const float *b, int64_t b_stride, int64_t depth) {
    for (int64_t j = 0, wide; j < n; j += wide ? 2 * WIDTH : WIDTH) {
        wide = n - j >= 2 * WIDTH;
        if (rows == TILE_ROWS && wide)
            NAME(tile)(TILE_ROWS, 2, c + j, c_stride, a, a_row, a_column, b + j, b_stride, depth);
        else
            for (int64_t r = 0; r < rows; r++) {
                float *to = c + r * c_stride + j;
                if (wide)
                    NAME(tile)(1, 2, to, 0, a + r * a_row, 0, a_column, b + j, b_stride, depth);
                else
                    NAME(tile)(1, 1, to, 0, a + r * a_row, 0, a_column, b + j, b_stride, depth);
            }
    }
}

/* Copies rows that begin `stride` numbers apart to (length, width): such rows often share few sets of the first-level
 * cache. */
static inline __attribute__((always_inline)) void NAME(gather)(
    float *to, const void *rows, int64_t stride, int64_t length, int64_t width, const int dtype) {
    for (int64_t t = 0; t < length; t++)
        for (int64_t d = 0; d < width; d += WIDTH)
            NAME(store)(to + t * width + d, NAME(read)(at(rows, t * stride + d, dtype), 0, WIDTH, dtype));
}

/* Copies (count, width) to rows that begin `stride` numbers apart. */
static inline __attribute__((always_inline)) void NAME(scatter)(
    void *rows, int64_t stride, const float *from, int64_t count, int64_t width, const int dtype) {
    for (int64_t t = 0; t < count; t++)
        for (int64_t d = 0; d < width; d += WIDTH)
            NAME(write)((void *)at(rows, t * stride + d, dtype), 0, WIDTH, NAME(load)(from + t * width + d), dtype);
}

/* The transpose of (length, width), (width, padded); the columns from `length` on become 0. */
static void NAME(transpose)(float *columns, const float *rows, int64_t length, int64_t width) {
    int64_t padded = padded_length(length);
    for (int64_t d = 0; d < width; d += 8)
        for (int64_t t = 0; t < padded; t++)
            for (int i = 0; i < 8; i++) columns[(d + i) * padded + t] = t < length ? rows[t * width + d + i] : 0;
}

/* e^(scale x - shift) of the first `count` numbers x, and 0 for those up to `end`, a multiple of TILE_COLUMNS; returns the
 * sum. */
static float NAME(shifted_exponentials)(float *x, int64_t count, int64_t end, float scale, float shift) {
    enum { VECTORS = NAME(TILE_COLUMNS) / WIDTH };
    NAME(floats) totals[PARTS] = {{0}};
    for (int64_t i = 0; i < end; i += NAME(TILE_COLUMNS)) {
        NAME(floats) v[VECTORS];
        for (int j = 0; j < VECTORS; j++) v[j] = NAME(load)(x + i + j * WIDTH) * scale - shift;
        NAME(exponentiate)(v, VECTORS, 1);
        for (int j = 0; j < VECTORS; j++) {
            v[j] = NAME(limit)(v[j], i + j * WIDTH, count, 0);
            totals[0] += v[j];
            NAME(store)(x + i + j * WIDTH, v[j]);
        }
    }
    return NAME(total)(totals);
}

/* y = softmax(scale q k^T) v. logs[t] is the logarithm of the sum of query t's exponentials. The buffer has room for
 * attention_buffer floats. */
static inline __attribute__((always_inline)) void NAME(attend_head_of)(
    void *y, int64_t y_stride, float *logs, const void *q, const void *k, const void *v, int64_t stride, int64_t length,
    int64_t width, float scale, float *buffer, const int dtype) {
    int64_t padded = padded_length(length);
    float *keys = buffer, *weights = keys + width * padded, *rows_of_y = weights + TILE_ROWS * padded;
    float *queries = rows_of_y + TILE_ROWS * width, *values = queries + length * width;
    NAME(gather)(values, k, stride, length, width, dtype);
    NAME(transpose)(keys, values, length, width);
    NAME(gather)(values, v, stride, length, width, dtype);
    NAME(gather)(queries, q, stride, length, width, dtype);
    for (int64_t t = 0; t < length; t += TILE_ROWS) {
        int64_t rows = length - t < TILE_ROWS ? length - t : TILE_ROWS;
        int64_t visible = t + rows, end = (visible + NAME(TILE_COLUMNS) - 1) / NAME(TILE_COLUMNS) * NAME(TILE_COLUMNS);
        NAME(multiply)(rows, end, weights, padded, queries + t * width, width, 1, keys, padded, width);
        for (int64_t r = 0; r < rows; r++) {
            float *row = weights + r * padded;
            NAME(floats) maxima = NAME(broadcast)(-INFINITY);
            for (int64_t i = 0; i <= t + r; i += WIDTH) {
                NAME(floats) scores = NAME(load)(row + i);
                if (t + r + 1 - i < WIDTH) scores = NAME(limit)(scores, i, t + r + 1, -INFINITY);
                maxima = NAME(larger)(maxima, scores);
            }
            float largest = NAME(highest)(maxima) * scale;
            float total = NAME(shifted_exponentials)(row, t + r + 1, end, scale, largest);
            logs[t + r] = largest + logf(total);
            for (int64_t i = 0; i < end; i += WIDTH) NAME(store)(row + i, NAME(load)(row + i) * (1 / total));
        }
        NAME(multiply)(rows, width, rows_of_y, width, weights, padded, 1, values, width, visible);
        NAME(scatter)((void *)at(y, t * y_stride, dtype), y_stride, rows_of_y, rows, width, dtype);
    }
}

/* The gradients dq, dk and dv of y = softmax(scale q k^T) v from that of y, which is dy. The weights P are computed again
 * from q, k and `logs`; the scores have the gradient S = P (dy v^T - sum(P dy v^T)) scale. */
static inline __attribute__((always_inline)) void NAME(attend_head_gradient_of)(
    void *dq, void *dk, void *dv, const void *dy, int64_t y_stride, const float *logs, const void *q, const void *k,
    const void *v, int64_t stride, int64_t length, int64_t width, float scale, float *buffer, const int dtype) {
    int64_t padded = padded_length(length), size = length * width;
    float *keys = buffer, *values = keys + width * padded; /* transposed */
    float *weights = values + width * padded, *scores = weights + length * padded;
    float *gathered = scores + length * padded; /* v, then k */
    float *queries = gathered + size, *outputs = queries + size, *result = outputs + size;
    NAME(gather)(gathered, v, stride, length, width, dtype);
    NAME(transpose)(values, gathered, length, width);
    NAME(gather)(gathered, k, stride, length, width, dtype);
    NAME(transpose)(keys, gathered, length, width);
    NAME(gather)(queries, q, stride, length, width, dtype);
    NAME(gather)(outputs, dy, y_stride, length, width, dtype);
    for (int64_t t = 0; t < length; t += TILE_ROWS) {
        int64_t rows = length - t < TILE_ROWS ? length - t : TILE_ROWS;
        int64_t visible = t + rows, end = (visible + NAME(TILE_COLUMNS) - 1) / NAME(TILE_COLUMNS) * NAME(TILE_COLUMNS);
        float *p = weights + t * padded, *s = scores + t * padded;
        NAME(multiply)(rows, end, p, padded, queries + t * width, width, 1, keys, padded, width);
        NAME(multiply)(rows, end, s, padded, outputs + t * width, width, 1, values, padded, width);
        for (int64_t r = 0; r < rows; r++, p += padded, s += padded) {
            NAME(shifted_exponentials)(p, t + r + 1, end, scale, logs[t + r]);
            NAME(floats) sums[PARTS] = {{0}};
            for (int64_t i = 0; i < end; i += WIDTH) sums[0] += NAME(load)(p + i) * NAME(load)(s + i);
            float sum = NAME(total)(sums);
            for (int64_t i = 0; i < end; i += WIDTH)
                NAME(store)(s + i, NAME(load)(p + i) * (NAME(load)(s + i) - sum) * scale);
        }
        NAME(multiply)(rows, width, result, width, scores + t * padded, padded, 1, gathered, width, visible);
        NAME(scatter)((void *)at(dq, t * stride, dtype), stride, result, rows, width, dtype);
    }
    for (int64_t t = 0; t < length; t += TILE_ROWS) { /* keys and values from t on, and the queries that see them */
        int64_t rows = length - t < TILE_ROWS ? length - t : TILE_ROWS, first = t * padded + t;
        NAME(multiply)(rows, width, result, width, scores + first, 1, padded, queries + t * width, width, length - t);
        NAME(scatter)((void *)at(dk, t * stride, dtype), stride, result, rows, width, dtype);
        NAME(multiply)(rows, width, result, width, weights + first, 1, padded, outputs + t * width, width, length - t);
        NAME(scatter)((void *)at(dv, t * stride, dtype), stride, result, rows, width, dtype);
    }
}

#define FOR_DTYPE(name, dtype) \
    static void NAME(attend_head_##name)( \
        void *y, int64_t y_stride, float *logs, const void *q, const void *k, const void *v, int64_t stride, \
        int64_t length, int64_t width, float scale, float *buffer) { \
        NAME(attend_head_of)(y, y_stride, logs, q, k, v, stride, length, width, scale, buffer, dtype); \
    } \
    static void NAME(attend_head_gradient_##name)( \
        void *dq, void *dk, void *dv, const void *dy, int64_t y_stride, const float *logs, const void *q, \
        const void *k, const void *v, int64_t stride, int64_t length, int64_t width, float scale, float *buffer) { \
        NAME(attend_head_gradient_of)( \
            dq, dk, dv, dy, y_stride, logs, q, k, v, stride, length, width, scale, buffer, dtype); \
    }
FOR_DTYPE(bfloat16, BFLOAT16)
FOR_DTYPE(float32, FLOAT32)
#undef FOR_DTYPE
