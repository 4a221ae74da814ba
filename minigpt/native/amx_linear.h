/* Linear layers and their gradients with AMX; included by amx_kernels.h.
 *
 * y = x W^T + bias with x (rows, in), W (out, in) and y (rows, out). Parameters and their gradients are in float32.
 */

/* As copy_tiles, from floats. */
static void copy_float_tiles(uint16_t *to, const float *x, int64_t stride, int64_t depth, int64_t n) {
    for (int64_t j = 0; j < n; j += TWO_TILES, to += TILE * depth)
        for (int64_t k = 0; k < depth; k += 2, to += 2 * TILE)
            for (int h = 0; h < 2; h++) {
                const float *even = x + k * stride + j + h * TILE;
                write_pairs(to + h * TILE * depth, load_avx512(even), load_avx512(even + stride));
            }
}

/* As copy_tiles_of_transpose, from floats. */
static void copy_float_tiles_of_transpose(uint16_t *to, const float *x, int64_t stride, int64_t depth, int64_t n) {
    for (int64_t j = 0; j < n; j += TILE)
        for (int64_t k = 0; k < depth; k += TILE_DEPTH, to += TILE_SIZE) {
            u32x16 tile[TILE];
            for (int r = 0; r < TILE; r++) {
                const float *row = x + (j + r) * stride + k;
                tile[r] = (u32x16)_mm512_cvtne2ps_pbh((__m512)load_avx512(row + TILE), (__m512)load_avx512(row));
            }
            transpose_words(tile);
            memcpy(to, tile, sizeof tile);
        }
}

/* Copies the tiles of A = x^T with x (depth, TWO_TILES), and returns the sums of x's columns in `sums`. */
static void copy_and_sum_rows(uint16_t *to, float *sums, const uint16_t *x, int64_t stride, int64_t depth) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    copy_tiles_of_transposed_rows(to, x, stride, depth, TWO_TILES);
    for (int r = 0; r < TWO_TILES; r++) {
        const uint16_t *row = to + r / TILE * TILE * depth + r % TILE * TILE_DEPTH;
        floats_avx512 total = {0};
        for (int64_t k = 0; k < depth; k += TILE_DEPTH, row += TILE_SIZE)
            total = (floats_avx512)_mm512_dpbf16_ps((__m512)total, (__m512bh)_mm512_loadu_si512(row), ones);
        sums[r] = total_avx512(&total);
    }
}

/* For the parallel regions below, which clang compiles for any x86 processor: there, vectors would pass through memory. */
static void multiply_rows_to_bfloat16(
    uint16_t *c, int64_t n, Tiles a, Tiles b, int64_t rows, int64_t depth, const float *bias) {
    multiply_rows(c, n, n, a, b, rows, depth, bias, BFLOAT16);
}

static void multiply_rows_to_float32(float *c, int64_t n, Tiles a, Tiles b, int64_t rows, int64_t depth) {
    multiply_rows(c, n, n, a, b, rows, depth, NULL, FLOAT32);
}

static int64_t larger_count(int64_t a, int64_t b) { return a > b ? a : b; }

/* How many of `rows` rows of A a thread multiplies with a column of B before the next one: few if all of B, (depth, n), stays
 * in a core's cache, else as many as stay there themselves. */
static int64_t rows_together(int64_t rows, int64_t depth, int64_t n, int threads) {
    enum { CACHED = 1 << 19 }; /* numbers: half of a second-level cache */
    int64_t most = depth * n <= CACHED ? TWO_TILES : larger_count(CACHED / depth / TWO_TILES * TWO_TILES, TWO_TILES);
    int64_t share = (rows / TWO_TILES + threads - 1) / threads * TWO_TILES;
    return share < most ? share : most;
}

/* The tiles of A = x, (m, depth): if there are many, copied to `to`, because each is read often. */
static Tiles tiles_of_rows(uint16_t *to, const uint16_t *x, int64_t depth, int64_t m) {
    if (m == TWO_TILES) return tiles_of(x, depth);
    uint16_t *tile = to;
    for (int64_t i = 0; i < m; i += TILE)
        for (int64_t k = 0; k < depth; k += TILE_DEPTH)
            for (int r = 0; r < TILE; r++, tile += TILE_DEPTH)
                memcpy(tile, x + (i + r) * depth + k, TILE_DEPTH * sizeof *tile);
    return copied_tiles(to, depth);
}

/* The numbers of bfloat16 that the buffers of the functions below need. */
int64_t minigpt_linear_buffer(int64_t rows, int64_t in, int64_t out, int threads) {
    int64_t of_y = in * out + threads * rows_together(rows, in, out, threads) * in;
    int64_t of_dx = in * out + threads * rows_together(rows, out, in, threads) * out;
    int64_t of_dweight = rows * in + threads * rows_together(out, rows, in, threads) * rows;
    return larger_count(of_dweight, larger_count(of_y, of_dx));
}

/* y = x weight^T + bias: y (rows, out) and x (rows, in) in bfloat16. */
void minigpt_linear(
    uint16_t *y, const uint16_t *x, const float *weight, const float *bias, int64_t rows, int64_t in, int64_t out,
    uint16_t *buffer, int threads) {
    int64_t most = rows_together(rows, in, out, threads);
#pragma omp parallel num_threads(threads)
    {
        uint16_t *own = buffer + in * out + THREAD * most * in;
        TileShapes before;
        use_tiles(&before);
#pragma omp for schedule(static)
        for (int64_t j = 0; j < out; j += TWO_TILES)
            copy_float_tiles_of_transpose(buffer + j * in, weight + j * in, in, in, TWO_TILES);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < rows; i += most) {
            int64_t count = rows - i < most ? rows - i : most;
            Tiles a = tiles_of_rows(own, x + i * in, in, count);
            multiply_rows_to_bfloat16(y + i * out, out, a, copied_tiles(buffer, in), count, in, bias);
        }
        restore_tiles(&before);
    }
}

/* The gradients of x in bfloat16, and of weight and bias, from that of y. dx may be NULL, or both dweight and dbias. */
void minigpt_linear_gradients(
    uint16_t *dx, float *dweight, float *dbias, const uint16_t *dy, const uint16_t *x, const float *weight, int64_t rows,
    int64_t in, int64_t out, uint16_t *buffer, int threads) {
#pragma omp parallel num_threads(threads)
    {
        TileShapes before;
        use_tiles(&before);
        if (dx) {
            int64_t most = rows_together(rows, out, in, threads);
            uint16_t *own = buffer + in * out + THREAD * most * out;
#pragma omp for schedule(static)
            for (int64_t j = 0; j < in; j += TWO_TILES)
                copy_float_tiles(buffer + j * out, weight + j, in, out, TWO_TILES);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < rows; i += most) {
                int64_t count = rows - i < most ? rows - i : most;
                Tiles a = tiles_of_rows(own, dy + i * out, out, count);
                multiply_rows_to_bfloat16(dx + i * in, in, a, copied_tiles(buffer, out), count, out, NULL);
            }
        }
        if (dweight) {
            int64_t most = rows_together(out, rows, in, threads);
            uint16_t *own = buffer + rows * in + THREAD * most * rows;
#pragma omp for schedule(static)
            for (int64_t j = 0; j < in; j += TWO_TILES) copy_tiles(buffer + j * rows, x + j, in, rows, TWO_TILES);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < out; i += most) {
                int64_t count = out - i < most ? out - i : most;
                for (int64_t r = 0; r < count; r += TWO_TILES)
                    copy_and_sum_rows(own + r * rows, dbias + i + r, dy + i + r, out, rows);
                Tiles a = copied_tiles(own, rows);
                multiply_rows_to_float32(dweight + i * in, in, a, copied_tiles(buffer, rows), count, rows);
            }
        }
        restore_tiles(&before);
    }
}
