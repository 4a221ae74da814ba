/* The orthogonalization of a matrix in float32, for one instruction set; included by training_kernels.h.
 *
 * All products but the last are of symmetric matrices that commute, so that each is symmetric too, and half of it is
 * computed. Source: minigpt/training/muon.py, which has the polynomials.
 */

/* A matrix whose element (i, j) is at data[i * row + j * column], times `factor`. */
typedef struct {
    const float *data;
    int64_t row, column;
    float factor;
} NAME(View);

/* `depth` x `width` numbers next to each other: those of the view's rows [0, depth) and columns [first, first + width), of
 * which it has `columns`; those beyond are 0. */
static inline __attribute__((always_inline)) void NAME(pack)(
    float *to, NAME(View) from, int64_t first, int64_t columns, int64_t depth, const int width) {
    int64_t count = columns - first < width ? columns - first : width;
    const float *row = from.data + first * from.column;
    for (int64_t k = 0; k < depth; k++, to += width, row += from.row)
        if (count == width && from.column == 1)
            for (int j = 0; j < width; j++) to[j] = row[j] * from.factor;
        else
            for (int j = 0; j < width; j++) to[j] = j < count ? row[j * from.column] * from.factor : 0;
}

/* c = A^T B, (m, n), with A (depth, m) and B (depth, n). If it is `symmetric`, one half is computed and copied to the other.
 * `buffer` has room for (m rounded up to TILE_ROWS, plus ROW_MULTIPLE) x depth floats. */
static void NAME(product)(
    float *c, NAME(View) a, NAME(View) b, int64_t m, int64_t n, int64_t depth, int symmetric, float *buffer) {
    float *rows = buffer, *panel = buffer + (m + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * depth;
    for (int64_t r = 0; r < m; r += TILE_ROWS) NAME(pack)(rows + r * depth, a, r, m, depth, TILE_ROWS);
    for (int64_t j = 0; j < n; j += NAME(TILE_COLUMNS)) {
        int64_t columns = n - j < NAME(TILE_COLUMNS) ? n - j : NAME(TILE_COLUMNS), end = symmetric && j + NAME(TILE_COLUMNS) < m ? j + NAME(TILE_COLUMNS) : m;
        NAME(pack)(panel, b, j, n, depth, NAME(TILE_COLUMNS));
        for (int64_t r = 0; r < end; r += TILE_ROWS) {
            const float *of_rows = rows + r * depth;
            if (m - r >= TILE_ROWS && columns == NAME(TILE_COLUMNS)) {
                NAME(tile)(TILE_ROWS, 2, c + r * n + j, n, of_rows, 1, TILE_ROWS, panel, NAME(TILE_COLUMNS), depth);
                continue;
            }
            float edge[TILE_ROWS * NAME(TILE_COLUMNS)];
            NAME(tile)(TILE_ROWS, 2, edge, NAME(TILE_COLUMNS), of_rows, 1, TILE_ROWS, panel, NAME(TILE_COLUMNS), depth);
            for (int64_t i = 0; i < TILE_ROWS && r + i < m; i++)
                memcpy(c + (r + i) * n + j, edge + i * NAME(TILE_COLUMNS), columns * sizeof *c);
        }
    }
    for (int64_t r = 0; symmetric && r < m; r += LANES) /* in blocks, which stay in the cache */
        for (int64_t j = 0; j <= r; j += LANES)
            for (int64_t i = r; i < r + LANES && i < m; i++)
                for (int64_t l = j; l < j + LANES && l < i; l++) c[i * n + l] = c[l * n + i];
}

/* y = the orthogonalized x, (rows, columns). `polynomials` has three coefficients for each of `count` iterations. The
 * buffer has room for orthogonalization_buffer floats. */
static void NAME(orthogonalize)(
    void *to, const void *from, int64_t rows, int64_t columns, const float *polynomials, int64_t count, float safety,
    float *buffer) {
    const float *x = from;
    float *y = to;
    int tall = rows > columns;
    int64_t m = tall ? columns : rows, k = tall ? rows : columns;
    float *gram = buffer, *p = gram + m * m, *all = p + m * m, *other = all + m * m, *scale = other + m * m;
    float *rest = scale + m;
    NAME(floats) squares[PARTS] = {{0}};
    for (int64_t i = 0; i < rows * columns; i += WIDTH) {
        NAME(floats) v = NAME(read)(x, i, rows * columns, FLOAT32);
        squares[0] += v * v;
    }
    float norm = sqrtf(NAME(total)(squares)), factor = 1 / (norm < 1e-7f ? 1e-7f : norm); /* against under- and overflow */
    NAME(View) wide = {x, tall ? 1 : columns, tall ? columns : 1, factor}; /* X, (m, k) */
    NAME(View) turned = {x, wide.column, wide.row, factor};
    NAME(product)(gram, turned, turned, m, m, k, 1, rest);
    memset(scale, 0, m * sizeof *scale);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < m; j++) scale[j] += fabsf(gram[i * m + j]);
    for (int64_t i = 0; i < m; i++) scale[i] = 1 / (sqrtf(scale[i] > 1e-12f ? scale[i] : 1e-12f) * safety);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < m; j++) gram[i * m + j] *= scale[i] * scale[j];
    for (int64_t number = 0; number < count; number++) {
        const float *coefficients = polynomials + 3 * number;
        NAME(View) of_gram = {gram, m, 1, 1}, of_p = {p, m, 1, 1}, of_all = {all, m, 1, 1}, of_other = {other, m, 1, 1};
        float *polynomial = number ? p : all;
        NAME(product)(polynomial, of_gram, of_gram, m, m, m, 1, rest);
        for (int64_t i = 0; i < m * m; i++) polynomial[i] = coefficients[1] * gram[i] + coefficients[2] * polynomial[i];
        for (int64_t i = 0; i < m; i++) polynomial[i * m + i] += coefficients[0];
        if (number + 1 < count) { /* the next X X^T */
            NAME(View) this = number ? of_p : of_all;
            NAME(product)(other, of_gram, this, m, m, m, 1, rest);
            NAME(product)(gram, this, of_other, m, m, m, 1, rest);
        }
        if (number) {
            NAME(product)(other, of_p, of_all, m, m, m, 1, rest);
            float *swapped = all;
            all = other, other = swapped;
        }
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < m; j++) all[i * m + j] *= scale[i];
    NAME(View) of_all = {all, m, 1, 1}; /* of which the transpose times X is the result */
    if (tall)
        NAME(product)(y, wide, of_all, k, m, m, 0, rest);
    else
        NAME(product)(y, of_all, wide, m, k, m, 0, rest);
}
