/* The orthogonalization of a matrix in bfloat16 with AMX; included by amx_kernels.h. */

/* y = a x + b A B, (m, n), of bfloat16; `tiles` are those of B, copied. */
static void combine(
    uint16_t *y, const uint16_t *rows, const uint16_t *tiles, int64_t m, int64_t n, int64_t depth, float a,
    const uint16_t *x, float b) {
    float block[TWO_TILES * TWO_TILES] __attribute__((aligned(64)));
    for (int64_t j = 0; j < n; j += TWO_TILES)
        for (int64_t i = 0; i < m; i += TWO_TILES) {
            Tiles columns = copied_tiles(tiles + j * depth, depth);
            multiply_tiles(block, TWO_TILES, tiles_of(rows + i * depth, depth), columns, depth / TILE_DEPTH);
            for (int r = 0; r < TWO_TILES; r++)
                for (int l = 0; l < TWO_TILES; l += TILE) {
                    int64_t at = (i + r) * n + j + l;
                    floats_avx512 v = load_avx512(block + r * TWO_TILES + l) * b;
                    round_to(y + at, v + widen_avx512(x + at) * a);
                }
        }
}

/* The floats that a thread's buffer needs to orthogonalize a matrix with tiles. */
static int64_t orthogonalization_tiles_buffer(int64_t rows, int64_t columns) {
    int64_t m = rows < columns ? rows : columns, k = rows < columns ? columns : rows;
    return m * m + m + (3 * m * k + 3 * m * m) / 2;
}

/* As orthogonalize in orthogonalization_kernels.h, but y and x are in bfloat16, and the iteration is computed as in muon.py:
 * powers of X X^T alone would not be precise enough. */
static void orthogonalize_tiles(
    void *y, const void *x, int64_t rows, int64_t columns, const float *polynomials, int64_t count, float safety,
    float *buffer) {
    int tall = rows > columns;
    int64_t m = tall ? columns : rows, k = tall ? rows : columns, size = rows * columns;
    float *exact = buffer, *scale = exact + m * m, norm, factor;
    uint16_t *this = (uint16_t *)(scale + m), *next = this + size, *tiles = next + size;
    uint16_t *gram = tiles + size, *polynomial = gram + m * m, *tiles_of_gram = polynomial + m * m;
    TileShapes before;
    floats_avx512 squares = {0};
    use_tiles(&before);
    if (tall) transpose_matrix(next, x, rows, columns);
    const uint16_t *wide = tall ? next : x; /* X, (m, k) */
    for (int64_t i = 0; i < size; i += TILE) {
        floats_avx512 v = widen_avx512(wide + i);
        squares += v * v;
    }
    norm = sqrtf(total_avx512(&squares)), factor = 1 / (norm < 1e-7f ? 1e-7f : norm); /* against under- and overflow */
    for (int64_t i = 0; i < size; i += TILE) round_to(this + i, widen_avx512(wide + i) * factor);
    copy_tiles_of_transpose(tiles, this, k, k, m);
    multiply_rows(exact, m, m, tiles_of(this, k), copied_tiles(tiles, k), m, k, NULL, FLOAT32);
    memset(scale, 0, m * sizeof *scale);
    for (int64_t i = 0; i < m; i++) /* columns, which are like the rows */
        for (int64_t j = 0; j < m; j++) scale[j] += fabsf(exact[i * m + j]);
    for (int64_t i = 0; i < m; i++) scale[i] = 1 / (sqrtf(scale[i] > 1e-12f ? scale[i] : 1e-12f) * safety);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < m; j += TILE)
            round_to(gram + i * m + j, load_avx512(exact + i * m + j) * scale[i] * load_avx512(scale + j));
        for (int64_t j = 0; j < k; j += TILE) round_to(this + i * k + j, widen_avx512(this + i * k + j) * scale[i]);
    }
    for (int64_t number = 0; number < count; number++) {
        const float *coefficients = polynomials + 3 * number;
        uint16_t *result = number + 1 < count || tall ? next : y;
        if (number) {
            copy_tiles_of_transpose(tiles, this, k, k, m);
            multiply_rows(gram, m, m, tiles_of(this, k), copied_tiles(tiles, k), m, k, NULL, BFLOAT16);
        }
        copy_tiles(tiles_of_gram, gram, m, m, m);
        combine(polynomial, gram, tiles_of_gram, m, m, m, coefficients[1], gram, coefficients[2]);
        copy_tiles(tiles, this, k, m, k);
        combine(result, polynomial, tiles, m, k, m, coefficients[0], this, 1);
        next = this, this = result;
    }
    if (tall) transpose_matrix(y, this, m, k);
    restore_tiles(&before);
}
