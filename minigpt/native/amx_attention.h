/* Causal attention of one head and its gradient with AMX; included by amx_kernels.h. attention_kernels.h has the arguments and
 * the sources.
 */

static int attention_uses_tiles(int64_t length, int64_t width) { return length % TWO_TILES == 0 && width % TWO_TILES == 0; }

/* Below, scores are in columns: those of TWO_TILES queries from position t on are the columns of a strip (t + TWO_TILES,
 * TWO_TILES), with a row for each key that one of them sees. So a lane of a vector is a query. */

/* strip = A B with A = x, of which `end` rows of `width` numbers are `stride` apart, and the tiles of B. */
static inline void fill_strip(float *strip, const uint16_t *x, int64_t stride, Tiles b, int64_t end, int64_t width) {
    for (int64_t s = 0; s < end; s += TWO_TILES)
        multiply_tiles(strip + s * TWO_TILES, TWO_TILES, tiles_of(x + s * stride, stride), b, width / TILE_DEPTH);
}

/* v where key s is visible to the query of each lane, of which the first has position t, and `rest` elsewhere. */
static inline floats_avx512 visible_or(floats_avx512 v, int64_t s, int64_t t, float rest) {
    return s <= t ? v : (floats_avx512)_mm512_mask_mov_ps((__m512)v, (1 << (s - t < TILE ? s - t : TILE)) - 1, _mm512_set1_ps(rest));
}

/* e^(scale x - shift) for two rows of a strip, of keys s and s + 1, and of queries from t on; 0 for keys that they do not
 * see. In v, the vectors of a row are next to each other. */
static inline __attribute__((always_inline)) void exponentiate_rows(
    floats_avx512 *v, const float *strip, int64_t s, int64_t t, float scale, const floats_avx512 *shifts) {
    for (int j = 0; j < 4; j++) v[j] = load_avx512(strip + s * TWO_TILES + j * TILE) * scale - shifts[j % 2];
    exponentiate_avx512(v, 4, 1);
    for (int j = 0; s + 1 > t && j < 4; j++) v[j] = visible_or(v[j], s + j / 2, t + j % 2 * TILE, 0);
}

/* Writes two rows as pairs, where copy_tiles would write them: `even` and `odd` have the columns of a tile of B. */
static inline void write_pairs(uint16_t *to, floats_avx512 even, floats_avx512 odd) {
    uint16_t order[2 * TILE];
    for (int i = 0; i < TILE; i++) order[2 * i] = i, order[2 * i + 1] = TILE + i;
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    halves = _mm512_permutexvar_epi16(_mm512_loadu_si512(order), halves);
    memcpy(to, &halves, sizeof halves);
}

/* Writes A B in bfloat16, times a factor for each column unless there are none, as TWO_TILES rows of `width` numbers, one for
 * each column: A has `width` rows, and B has TWO_TILES columns. */
static inline void write_columns(
    uint16_t *to, int64_t stride, Tiles a, Tiles b, int64_t width, int64_t depth, const floats_avx512 *factors) {
    float block[TWO_TILES * TWO_TILES] __attribute__((aligned(64)));
    for (int64_t d = 0; d < width; d += TWO_TILES, a.data += 2 * a.beside) {
        multiply_tiles(block, TWO_TILES, a, b, depth / TILE_DEPTH);
        for (int64_t i = 0; i < TWO_TILES; i += TILE)
            for (int64_t j = 0; j < TWO_TILES; j += TILE) {
                u32x16 rows[TILE];
                for (int r = 0; r < TILE; r++) {
                    floats_avx512 row = load_avx512(block + (i + r) * TWO_TILES + j);
                    rows[r] = (u32x16)(factors ? row * factors[j / TILE] : row);
                }
                transpose_words(rows);
                for (int r = 0; r < TILE; r++) round_to(to + (j + r) * stride + d + i, (floats_avx512)rows[r]);
            }
    }
}

/* As attend_head in attention_kernels.h. */
static void attend_head_tiles(
    void *y, int64_t y_stride, float *logs, const void *q, const void *k, const void *v, int64_t stride, int64_t length,
    int64_t width, float scale, float *buffer) {
    if (!attention_uses_tiles(length, width)) {
        attend_head_bfloat16_avx512(y, y_stride, logs, q, k, v, stride, length, width, scale, buffer);
        return;
    }
    float *scores = buffer;
    uint16_t *weights = (uint16_t *)(scores + TWO_TILES * length), *queries = weights + TWO_TILES * length;
    uint16_t *values = queries + length * width;
    TileShapes before;
    use_tiles(&before);
    copy_tiles_of_transpose(queries, q, stride, width, length);
    copy_tiles_of_transposed_rows(values, v, stride, length, width);
    for (int64_t t = 0; t < length; t += TWO_TILES) {
        int64_t end = t + TWO_TILES;
        floats_avx512 largest[2], totals[2] = {{0}}, inverse[2];
        fill_strip(scores, k, stride, copied_tiles(queries + t * width, width), end, width);
        largest[0] = largest[1] = broadcast_avx512(-INFINITY);
        for (int64_t s = 0; s < end; s++)
            for (int h = 0; h < 2; h++) {
                floats_avx512 row = load_avx512(scores + s * TWO_TILES + h * TILE) * scale;
                largest[h] = larger_avx512(largest[h], visible_or(row, s, t + h * TILE, -INFINITY));
            }
        for (int64_t s = 0; s < end; s += 2) {
            floats_avx512 p[4];
            exponentiate_rows(p, scores, s, t, scale, largest);
            for (int h = 0; h < 2; h++) {
                totals[h] += p[h] + p[2 + h];
                write_pairs(weights + h * TILE * end + s * TILE, p[h], p[2 + h]);
            }
        }
        for (int i = 0; i < TWO_TILES; i++) logs[t + i] = largest[i / TILE][i % TILE] + logf(totals[i / TILE][i % TILE]);
        for (int h = 0; h < 2; h++) inverse[h] = 1 / totals[h];
        write_columns(
            (uint16_t *)y + t * y_stride, y_stride, copied_tiles(values, length), copied_tiles(weights, end), width, end,
            inverse);
    }
    restore_tiles(&before);
}

/* As attend_head_gradient in attention_kernels.h. The weights and the gradients of the scores have a row for each key. */
static void attend_head_gradient_tiles(
    void *dq, void *dk, void *dv, const void *dy, int64_t y_stride, const float *logs, const void *q, const void *k,
    const void *v, int64_t stride, int64_t length, int64_t width, float scale, float *buffer) {
    if (!attention_uses_tiles(length, width)) {
        attend_head_gradient_bfloat16_avx512(
            dq, dk, dv, dy, y_stride, logs, q, k, v, stride, length, width, scale, buffer);
        return;
    }
    int64_t size = length * width;
    float *p = buffer, *g = p + TWO_TILES * length;
    uint16_t *tiles_of_scores = (uint16_t *)(g + TWO_TILES * length), *keys = tiles_of_scores + TWO_TILES * length;
    uint16_t *queries = keys + size, *outputs = queries + size;                    /* as depth */
    uint16_t *of_queries = outputs + size, *of_outputs = of_queries + size;        /* as columns */
    uint16_t *weights = of_outputs + size, *scores = weights + length * length;
    TileShapes before;
    use_tiles(&before);
    copy_tiles_of_transposed_rows(keys, k, stride, length, width);
    copy_tiles(queries, q, stride, length, width);
    copy_tiles(outputs, dy, y_stride, length, width);
    copy_tiles_of_transpose(of_queries, q, stride, width, length);
    copy_tiles_of_transpose(of_outputs, dy, y_stride, width, length);
    for (int64_t t = 0; t < length; t += TWO_TILES) {
        int64_t end = t + TWO_TILES;
        floats_avx512 shifts[2] = {load_avx512(logs + t), load_avx512(logs + t + TILE)}, sums[2] = {{0}};
        fill_strip(p, k, stride, copied_tiles(of_queries + t * width, width), end, width);
        fill_strip(g, v, stride, copied_tiles(of_outputs + t * width, width), end, width);
        for (int64_t s = 0; s < end; s += 2) {
            floats_avx512 rows[4];
            exponentiate_rows(rows, p, s, t, scale, shifts);
            for (int j = 0; j < 4; j++) {
                store_avx512(p + s * TWO_TILES + j * TILE, rows[j]);
                sums[j % 2] += rows[j] * load_avx512(g + s * TWO_TILES + j * TILE);
            }
        }
        for (int64_t s = 0; s < end; s += 2)
            for (int h = 0; h < 2; h++) {
                floats_avx512 gradients[2];
                for (int i = 0; i < 2; i++) {
                    floats_avx512 weight = load_avx512(p + (s + i) * TWO_TILES + h * TILE);
                    gradients[i] = weight * (load_avx512(g + (s + i) * TWO_TILES + h * TILE) - sums[h]) * scale;
                    round_to(weights + (s + i) * length + t + h * TILE, weight);
                    round_to(scores + (s + i) * length + t + h * TILE, gradients[i]);
                }
                write_pairs(tiles_of_scores + h * TILE * end + s * TILE, gradients[0], gradients[1]);
            }
        write_columns(
            (uint16_t *)dq + t * stride, stride, copied_tiles(keys, length), copied_tiles(tiles_of_scores, end), width, end,
            NULL);
    }
    for (int64_t s = 0; s < length; s += TWO_TILES) { /* keys and values from s on, and the queries that see them */
        int64_t seen = s * length + s, skipped = s / TILE_DEPTH * TILE_SIZE, depth = length - s;
        Tiles of_depth = copied_tiles(queries, length);
        of_depth.data += skipped;
        multiply_rows(
            (uint16_t *)dk + s * stride, stride, width, tiles_of(scores + seen, length), of_depth, TWO_TILES, depth, NULL,
            BFLOAT16);
        of_depth.data += outputs - queries;
        multiply_rows(
            (uint16_t *)dv + s * stride, stride, width, tiles_of(weights + seen, length), of_depth, TWO_TILES, depth, NULL,
            BFLOAT16);
    }
    restore_tiles(&before);
}
