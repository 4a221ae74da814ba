/* Attention, Muon's orthogonalization and linear layers in bfloat16 with AMX, for which Intel's processors have registers of
 * tiles: 16 rows of 64 bytes. training.c includes this file. Sums are in float32; what is multiplied is rounded to bfloat16.
 * Beyond the products, the arithmetic is that of AVX-512.
 *
 * One instruction adds the product of a tile of A, 16 rows of 32 numbers, and one of B to a tile of 16 x 16 floats. B's tile
 * has 32 rows of 16 numbers, of which two rows at a time are stored as pairs: ((0, 0), (1, 0)), ((0, 1), (1, 1)), ... Tiles of
 * B, and those of a transposed A, are copied into this order first. Source: Intel Architecture Instruction Set Extensions
 * Programming Reference, chapter 3.
 *
 * All lengths are multiples of TWO_TILES. Where an argument ends in `stride`, rows begin that many numbers apart.
 */

enum { TILE = 16, TILE_DEPTH = 32, TILE_SIZE = TILE * TILE_DEPTH, TWO_TILES = 2 * TILE };

typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

/* The tiles of a matrix, one column or row of them: tile k is at data + k * next, and its rows are `stride` bytes apart. The one
 * beside it is `beside` numbers away. */
typedef struct {
    const uint16_t *data;
    int64_t next, beside, stride;
} Tiles;

/* The tiles of A in a matrix (m, depth). */
static Tiles tiles_of(const uint16_t *x, int64_t stride) {
    return (Tiles){x, TILE_DEPTH, TILE * stride, stride * sizeof *x};
}

/* Tiles that the functions below have copied. */
static Tiles copied_tiles(const uint16_t *x, int64_t depth) {
    return (Tiles){x, TILE_SIZE, TILE * depth, TILE_DEPTH * sizeof *x};
}

typedef struct {
    uint8_t palette, first_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TileShapes;

/* gcc does not know which memory the instructions for tiles read: this makes it write all numbers before. */
#define WRITE_ALL __asm__ volatile("" ::: "memory")

/* Gives all tiles their full size. What this thread used before, which `restore_tiles` brings back, is that of PyTorch's
 * products. */
static void use_tiles(TileShapes *before) {
    TileShapes all = {.palette = 1};
    for (int i = 0; i < 8; i++) all.bytes[i] = 64, all.rows[i] = TILE;
    WRITE_ALL;
    _tile_storeconfig(before);
    _tile_loadconfig(&all);
    WRITE_ALL;
}

static void restore_tiles(const TileShapes *before) {
    WRITE_ALL;
    if (before->palette)
        _tile_loadconfig(before);
    else
        _tile_release();
}

/* c = A B for two tiles by two, (TWO_TILES, TWO_TILES) floats, summed over `count` tiles of depth. */
static inline void multiply_tiles(float *c, int64_t c_stride, Tiles a, Tiles b, int64_t count) {
    const uint16_t *rows = a.data, *columns = b.data;
    WRITE_ALL;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < count; k++, rows += a.next, columns += b.next) {
        _tile_loadd(4, rows, a.stride);
        _tile_loadd(6, columns, b.stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, columns + b.beside, b.stride);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, rows + a.beside, a.stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_stride * sizeof *c);
    _tile_stored(1, c + TILE, c_stride * sizeof *c);
    _tile_stored(2, c + TILE * c_stride, c_stride * sizeof *c);
    _tile_stored(3, c + TILE * c_stride + TILE, c_stride * sizeof *c);
}

/* Rounds to the nearest bfloat16, half to even; numbers below the smallest normal one become 0. */
static inline void round_to(uint16_t *p, floats_avx512 v) {
    __m256bh halves = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &halves, sizeof halves);
}

/* Numbers of two rows as pairs. */
static inline u32x16 pairs(const uint16_t *even, const uint16_t *odd) {
    u16x16 lower, upper;
    memcpy(&lower, even, sizeof lower);
    memcpy(&upper, odd, sizeof upper);
    return __builtin_convertvector(lower, u32x16) | __builtin_convertvector(upper, u32x16) << 16;
}

#if defined(__clang__)
#define SELECT(a, b, from) (u32x16) _mm512_permutex2var_epi32((__m512i)(a), (__m512i)(from), (__m512i)(b))
#else
#define SELECT(a, b, from) __builtin_shuffle(a, b, from)
#endif

/* Of 16 vectors, blocks of `size` x `size` change places with those on the other side of the diagonal. */
static inline __attribute__((always_inline)) void exchange_blocks(u32x16 *x, const int size) {
    i32x16 upper, lower;
    for (int lane = 0; lane < 16; lane++) {
        upper[lane] = lane & size ? 16 + lane - size : lane;
        lower[lane] = lane & size ? 16 + lane : lane + size;
    }
    for (int i = 0; i < 16; i++)
        if (!(i & size)) {
            u32x16 a = x[i], b = x[i + size];
            x[i] = SELECT(a, b, upper);
            x[i + size] = SELECT(a, b, lower);
        }
}

static inline __attribute__((always_inline)) void transpose_words(u32x16 *x) {
    exchange_blocks(x, 8);
    exchange_blocks(x, 4);
    exchange_blocks(x, 2);
    exchange_blocks(x, 1);
}

/* Copies the tiles of B = x, (depth, n). Two tiles side by side are a cache line wide. */
static void copy_tiles(uint16_t *to, const uint16_t *x, int64_t stride, int64_t depth, int64_t n) {
    for (int64_t j = 0; j < n; j += TWO_TILES, to += TILE * depth)
        for (int64_t k = 0; k < depth; k += 2, to += 2 * TILE)
            for (int h = 0; h < 2; h++) {
                const uint16_t *even = x + k * stride + j + h * TILE;
                u32x16 row = pairs(even, even + stride);
                memcpy(to + h * TILE * depth, &row, sizeof row);
            }
}

/* Copies the tiles of B = x^T with x (n, depth). */
static void copy_tiles_of_transpose(uint16_t *to, const uint16_t *x, int64_t stride, int64_t depth, int64_t n) {
    for (int64_t j = 0; j < n; j += TILE)
        for (int64_t k = 0; k < depth; k += TILE_DEPTH, to += TILE_SIZE) {
            u32x16 tile[TILE];
            for (int r = 0; r < TILE; r++) memcpy(tile + r, x + (j + r) * stride + k, sizeof *tile);
            transpose_words(tile);
            memcpy(to, tile, sizeof tile);
        }
}

/* The transpose of TILE_DEPTH rows of TILE numbers. */
static inline void transpose_tile(uint16_t *to, int64_t to_stride, const uint16_t *x, int64_t stride) {
    u32x16 tile[TILE];
    for (int r = 0; r < TILE; r++) tile[r] = pairs(x + 2 * r * stride, x + (2 * r + 1) * stride);
    transpose_words(tile);
    for (int r = 0; r < TILE; r++) memcpy(to + r * to_stride, tile + r, sizeof *tile);
}

/* Copies the tiles of A = x^T with x (depth, m). */
static void copy_tiles_of_transposed_rows(uint16_t *to, const uint16_t *x, int64_t stride, int64_t depth, int64_t m) {
    for (int64_t i = 0; i < m; i += TWO_TILES, to += TILE * depth)
        for (int64_t k = 0; k < depth; k += TILE_DEPTH, to += TILE_SIZE)
            for (int h = 0; h < 2; h++)
                transpose_tile(to + h * TILE * depth, TILE_DEPTH, x + k * stride + i + h * TILE, stride);
}

static void transpose_matrix(uint16_t *to, const uint16_t *x, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r += TILE_DEPTH)
        for (int64_t c = 0; c < columns; c += TILE) transpose_tile(to + c * rows + r, rows, x + r * columns + c, columns);
}

/* c = A B, (rows, n), plus a bias unless it is NULL; c has the dtype, and its rows begin c_stride numbers apart. The rows of A
 * that are multiplied with all columns of B, one after the other, stay in the cache. */
static inline __attribute__((always_inline)) void multiply_rows(
    void *c, int64_t c_stride, int64_t n, Tiles a, Tiles b, int64_t rows, int64_t depth, const float *bias,
    const int dtype) {
    float block[TWO_TILES * TWO_TILES] __attribute__((aligned(64)));
    for (int64_t j = 0; j < n; j += TWO_TILES, b.data += 2 * b.beside) {
        Tiles of_rows = a;
        for (int64_t i = 0; i < rows; i += TWO_TILES, of_rows.data += 2 * of_rows.beside) {
            multiply_tiles(block, TWO_TILES, of_rows, b, depth / TILE_DEPTH);
            for (int64_t r = 0; r < TWO_TILES; r++)
                for (int64_t l = 0; l < TWO_TILES; l += TILE) {
                    floats_avx512 v = load_avx512(block + r * TWO_TILES + l);
                    if (bias) v += load_avx512(bias + j + l);
                    if (dtype == FLOAT32)
                        store_avx512((float *)c + (i + r) * c_stride + j + l, v);
                    else
                        round_to((uint16_t *)c + (i + r) * c_stride + j + l, v);
                }
        }
    }
}

#include "amx_attention.h"
#include "amx_orthogonalization.h"
#include "amx_linear.h"
