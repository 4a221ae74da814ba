/* GPT-2's decode step on a CPU: computes logits for a few rows of ids in one parallel region.
 *
 * At batch size 1 every token reads every weight once, so the memory's bandwidth limits the speed. All threads read
 * the weights at once and in order. float32 weights are used in place (in a mapped file or a PyTorch tensor); int8
 * weights are packed once by minigpt_pack. NativeEngine calls these functions through ctypes. Tests compare the logits
 * with those of minigpt/model/gpt.py. The arithmetic is in kernels.h.
 */

#include "platform.h"

#ifndef STORED_SIGN
#define STORED_SIGN 0x80 /* packed weights have 128 added, which is their highest bit flipped */
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packed int8 weights need a little-endian processor: of four weights, the first is in the lowest byte"
#endif

enum { BLOCK = 64, STREAMS = 8, SUMS = 4096, CHUNK = 256, MAX_ROWS = 512, INT8_ROWS = 128 };
enum { SHARED_ROWS = 32 }; /* from which on threads take parts of a product until none is left */
enum { TILED = 32, INPUTS = 256, AHEAD = 32 }; /* of many rows with float32 weights by columns */
enum { PREFETCH = 4096 }; /* bytes ahead at which int8 weights are prefetched */
enum { QUERIES = 32, TOGETHER = 8 }; /* of one sequence, whose attention is computed together */
enum { BY_ROWS, BY_COLUMNS, INT8 };
enum { OUT_OF_MEMORY = 1, OUT_OF_RANGE };

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

/* The matrix of y = x W^T + bias: (in) -> (out). int8 weights are stored in panels of 16 outputs,
 * (out / 16, in / 4, 16, 4), with 128 added to each and a `scale` for each output. In this form `out` is rounded up
 * to a multiple of 16 and `in` to a multiple of 4. */
typedef struct {
    const void *weight;
    const float *scale, *bias; /* (out), or NULL */
    int64_t in, out, form;
} Matrix;

typedef struct {
    const float *attention_norm_weight, *attention_norm_bias, *mlp_norm_weight, *mlp_norm_bias; /* (C) */
    Matrix qkv_proj, out_proj, up_proj, down_proj;
    float *keys, *values; /* the key/value cache, (B, H, n_positions, D) */
} Layer;

typedef struct {
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
    float epsilon;
    const float *token_embedding, *position_embedding; /* (V, C), (n_positions, C); the first is not read in int8 */
    const float *final_norm_weight, *final_norm_bias;
    Matrix head;
    const Layer *layers;
} Model;

/* Activations in int8, with a scale for each BLOCK of them. */
typedef struct {
    int8_t *values;   /* (rows, stride) */
    float *scales;    /* (rows, blocks) */
    int32_t *offsets; /* (rows, blocks) */
    int64_t stride, blocks;
} Quantized;

typedef struct {
    void (*layer_norm)(float *, const float *, const float *, const float *, int64_t, float);
    void (*gelu)(float *, int64_t);
    void (*attend)(float *, const float *, int64_t, int64_t, const float *, const float *, int64_t, int64_t, float *, int64_t);
    void (*multiply_rows)(float *, const float *, int64_t, const Matrix *, int64_t, int64_t);
    void (*multiply_columns)(float *, const float *, int64_t, const Matrix *, int64_t, int64_t);
    void (*pack)(uint8_t *, float *, const Matrix *, int64_t);
    void (*quantize)(Quantized *, int64_t, const float *, int64_t);
    void (*multiply_int8)(float *, const Quantized *, int64_t, const Matrix *, int64_t, int64_t);
} Kernels;

/* The bits of |x|. As integers they have the order of the floats; infinity is above all of them, NaN above infinity. */
static inline int32_t magnitude(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

/* Rounds x to the nearest integer, half to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
 * NaN maps to an unspecified integer. */
static inline int32_t nearest(float x) {
    const float round = 12582912.0f;
    float shifted = x + round;
    uint32_t bits, zero;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&zero, &round, sizeof zero);
    return (int32_t)(bits - zero);
}

/* The scale for int8 values whose largest magnitude has these bits, so that it becomes 127; NaN if one is NaN. The
 * inverse is 0 if the largest magnitude is too small to divide by. */
static inline float int8_scale(int32_t largest, float *inverse) {
    float size;
    memcpy(&size, &largest, sizeof size);
    *inverse = size > 1e-35f ? 127 / size : 0;
    return size / 127;
}

/* The instruction sets. */

#define ISA plain
#define PARTS 4
#define ROWS 2
#define PANELS 1
#define FLOAT_ROWS 2
#define WEIGHT_OFFSET 0
static inline i32x4 dot4_plain(i32x4 sum, const uint8_t *w, const int8_t *a) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++) sum[j] += ((int32_t)w[4 * j + i] - 128) * a[i];
    return sum;
}
#define DOT4 dot4_plain
#define MULTIPLY_ADD(a, b, sum) ((sum) + (a) * (b))
#include "kernels.h"

#if defined(__x86_64__)

BEGIN_TARGET("avx2,fma")
/* |a| is at most 127, so the sum of two products is below 2^15, where maddubs would saturate. */
static inline i32x8 dot4_avx2(i32x8 sum, const uint8_t *w, const int8_t *a) {
    int32_t four;
    memcpy(&four, a, sizeof four);
    __m256i weights = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)w), _mm256_set1_epi8((char)0x80));
    __m256i activations = _mm256_set1_epi32(four);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(activations), _mm256_sign_epi8(weights, activations));
    return (i32x8)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline i32x8 dot2_avx2(i32x8 sum, i32x8 w, i32x8 a) {
    return (i32x8)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16((__m256i)w, (__m256i)a));
}
#define ISA avx2
#define PARTS 2
#define ROWS 4
#define PANELS 1
#define WEIGHT_OFFSET 0
#define DOT4 dot4_avx2
#define DOT2 dot2_avx2
#define WIDE_ROWS 6
#define FLOAT_ROWS 6
#define MULTIPLY_ADD(a, b, sum) ((floats_avx2)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(sum)))
#include "kernels.h"
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")
static inline i32x16 dot4_vnni(i32x16 sum, const uint8_t *w, const int8_t *a) {
    int32_t four;
    memcpy(&four, a, sizeof four);
    return (i32x16)_mm512_dpbusd_epi32((__m512i)sum, _mm512_loadu_si512(w), _mm512_set1_epi32(four));
}
#define ISA vnni
#define PARTS 1
#define ROWS 6
#define PANELS 2
#define FLOAT_ROWS 12
#define WEIGHT_OFFSET 128
#define DOT4 dot4_vnni
#define MULTIPLY_ADD(a, b, sum) ((floats_vnni)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(sum)))
#include "kernels.h"
END_TARGET

#elif defined(HAVE_DOTPROD)

BEGIN_TARGET(DOTPROD)
static inline i32x4 dot4_dotprod(i32x4 sum, const uint8_t *w, const int8_t *a) {
    int32_t four;
    memcpy(&four, a, sizeof four);
    int8x16_t weights = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w), vdupq_n_u8(0x80)));
    return (i32x4)vdotq_s32((int32x4_t)sum, weights, vreinterpretq_s8_s32(vdupq_n_s32(four)));
}
#define ISA dotprod
#define PARTS 4
#define ROWS 4
#define PANELS 1
#define WEIGHT_OFFSET 0
#define DOT4 dot4_dotprod
#define FLOAT_ROWS 6
#define MULTIPLY_ADD(a, b, sum) ((floats_dotprod)vfmaq_f32((float32x4_t)(sum), (float32x4_t)(a), (float32x4_t)(b)))
#include "kernels.h"
END_TARGET

#endif

static const struct { const char *name; const Kernels *kernels; } SETS[] = {
#if defined(__x86_64__)
#if defined(HAVE_AMX)
    {"avx512-amx", &kernels_vnni}, /* training.c uses AMX */
#endif
    {"avx512-vnni", &kernels_vnni},
    {"avx2", &kernels_avx2},
#elif defined(HAVE_DOTPROD)
    {"neon-dotprod", &kernels_dotprod},
#endif
    {"plain", &kernels_plain},
};
enum { N_SETS = sizeof SETS / sizeof *SETS };

/* Whether the processor has the named instruction set. */
static int has(const char *name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(HAVE_AMX)
    if (!strcmp(name, "avx512-amx")) return has("avx512-vnni") && has_amx();
#endif
    if (!strcmp(name, "avx512-vnni"))
        return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!strcmp(name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined(HAVE_DOTPROD) && defined(__linux__)
    if (!strcmp(name, "neon-dotprod")) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(HAVE_DOTPROD) && defined(__APPLE__)
    if (!strcmp(name, "neon-dotprod")) return 1; /* every Apple processor for arm64 has it */
#endif
    return !strcmp(name, "plain");
}

static const Kernels *kernels;
static const char *selected;

#ifndef SOURCES
#define SOURCES "unknown"
#endif

/* The SHA-256 of the sources in this folder, which setup.py passes to the compiler. */
const char *minigpt_sources(void) { return SOURCES; }

/* An instruction set extension that the whole library is compiled for, by -march or -mcpu, and that the processor lacks; NULL
 * if there is none. */
const char *minigpt_lacking(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(__AVX__)
    if (!__builtin_cpu_supports("avx")) return "avx";
#endif
#if defined(__AVX2__)
    if (!__builtin_cpu_supports("avx2")) return "avx2";
#endif
#if defined(__FMA__)
    if (!__builtin_cpu_supports("fma")) return "fma";
#endif
#if defined(__BMI2__)
    if (!__builtin_cpu_supports("bmi2")) return "bmi2";
#endif
#if defined(__FMA4__)
    if (!__builtin_cpu_supports("fma4")) return "fma4";
#endif
#if defined(__XOP__)
    if (!__builtin_cpu_supports("xop")) return "xop";
#endif
#if defined(__AVX512F__)
    if (!__builtin_cpu_supports("avx512f")) return "avx512f";
#endif
#if defined(__AVX512BW__)
    if (!__builtin_cpu_supports("avx512bw")) return "avx512bw";
#endif
#if defined(__AVX512VL__)
    if (!__builtin_cpu_supports("avx512vl")) return "avx512vl";
#endif
#if defined(__AVX512DQ__)
    if (!__builtin_cpu_supports("avx512dq")) return "avx512dq";
#endif
#if defined(__AVX512IFMA__)
    if (!__builtin_cpu_supports("avx512ifma")) return "avx512ifma";
#endif
#if defined(__AVX512VBMI__)
    if (!__builtin_cpu_supports("avx512vbmi")) return "avx512vbmi";
#endif
#if defined(__AVX512VBMI2__)
    if (!__builtin_cpu_supports("avx512vbmi2")) return "avx512vbmi2";
#endif
#if defined(__AVX512VNNI__)
    if (!__builtin_cpu_supports("avx512vnni")) return "avx512vnni";
#endif
#if defined(__AVX512BF16__)
    if (!__builtin_cpu_supports("avx512bf16")) return "avx512bf16";
#endif
#if defined(__AVX512FP16__) && !defined(__clang__) /* of which some do not know the name */
    if (!__builtin_cpu_supports("avx512fp16")) return "avx512fp16";
#endif
#if defined(__AVXVNNI__) && !defined(__clang__) /* of which some do not know the name */
    if (!__builtin_cpu_supports("avxvnni")) return "avxvnni";
#endif
#elif defined(__aarch64__) && defined(__linux__)
#if defined(__ARM_FEATURE_ATOMICS) && defined(HWCAP_ATOMICS)
    if (!(getauxval(AT_HWCAP) & HWCAP_ATOMICS)) return "lse";
#endif
#if defined(__ARM_FEATURE_DOTPROD) && defined(HWCAP_ASIMDDP)
    if (!(getauxval(AT_HWCAP) & HWCAP_ASIMDDP)) return "dotprod";
#endif
#if defined(__ARM_FEATURE_SVE) && defined(HWCAP_SVE)
    if (!(getauxval(AT_HWCAP) & HWCAP_SVE)) return "sve";
#endif
#endif
    return NULL;
}

/* Selects the named instruction set, or the processor's best for NULL. Returns its name, or NULL if unsupported. */
const char *minigpt_use(const char *name) {
    for (int i = 0; i < N_SETS; i++)
        if ((name == NULL || !strcmp(name, SETS[i].name)) && has(SETS[i].name)) {
            kernels = SETS[i].kernels;
            return selected = SETS[i].name;
        }
    return NULL;
}

/* The name of the selected instruction set, or NULL. */
const char *minigpt_selected(void) { return selected; }

/* Whether AMD made the processor. */
int minigpt_is_amd(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") != 0;
#else
    return 0;
#endif
}

/* Packs float32 weights, stored by rows or by columns, to int8 panels: an output's largest weight becomes 127 `scale`.
 * `packed` has (out rounded up to 16) x (in rounded up to 4) bytes. */
void minigpt_pack(uint8_t *packed, float *scale, const Matrix *m, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < m->out; o += LANES) kernels->pack(packed, scale, m, o);
}

/* The decode step. All threads of one parallel region call each function below together. It divides its work among them
 * and returns when all of it is done. */

typedef struct {
    float *x;             /* (rows, C), the residual stream */
    float *added;         /* (rows, C), what a block adds to it */
    float *normed;        /* (rows, C), also attention's output */
    float *qkv;           /* (rows, 3C) */
    float *hidden;        /* (rows, 4C) */
    float *scores;        /* (threads, scores_size) */
    Quantized narrow, wide; /* `normed` and `hidden` in int8 */
} Work;

/* Ids with their positions and sequences; the rows of one sequence are in the order of their positions. */
typedef struct {
    const int64_t *ids, *positions, *sequences; /* (rows) */
    int64_t count, logits_from;                 /* logits are computed from that row on */
} Rows;

/* The weights of one output of a matrix in int8 panels. */
static void unpack(float *x, const Matrix *m, int64_t output) {
    int64_t padded = (m->in + 3) / 4 * 4;
    const uint8_t *first = (const uint8_t *)m->weight + output / LANES * LANES * padded + output % LANES * 4;
    for (int64_t i = 0; i < m->in; i++)
        x[i] = (int8_t)(first[i / 4 * 4 * LANES + i % 4] ^ STORED_SIGN) * m->scale[output];
}

/* A token's embedding is its row of the head, which is in int8 if the head is. */
static void embed(const Model *m, const Rows *rows, Work *w) {
    int64_t c = m->n_embd;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows->count; r++) {
        float *x = w->x + r * c;
        const float *position = m->position_embedding + rows->positions[r] * c;
        if (m->head.form == INT8)
            unpack(x, &m->head, rows->ids[r]);
        else
            memcpy(x, m->token_embedding + rows->ids[r] * c, c * sizeof *x);
        for (int64_t i = 0; i < c; i++) x[i] += position[i];
        memset(w->added + r * c, 0, c * sizeof *w->added);
    }
}

/* x += added, then normed = LayerNorm(x) for rows [from, to); also in int8 if the next matrix is. */
static void norm(const Model *m, int64_t from, int64_t to, const float *weight, const float *bias, int form, Work *w) {
    int64_t c = m->n_embd;
#pragma omp for schedule(static)
    for (int64_t r = from; r < to; r++) {
        float *x = w->x + r * c, *y = w->normed + r * c;
        for (int64_t i = 0; i < c; i++) x[i] += w->added[r * c + i];
        kernels->layer_norm(y, x, weight, bias, c, m->epsilon);
        if (form == INT8) kernels->quantize(&w->narrow, r, y, c);
    }
}

/* The rows [from, to) of x in int8, if the next matrix is. */
static void quantize(Quantized *q, const float *x, int64_t from, int64_t to, const Matrix *m) {
    if (m->form != INT8) return;
#pragma omp for schedule(static)
    for (int64_t r = from; r < to; r++) kernels->quantize(q, r, x + r * m->in, m->in);
}

/* The outputs [from, to) of y = x W^T + bias for `rows` rows, then GELU if `gelu`. */
static void multiply_part(float *y, const float *x, const Quantized *q, int64_t rows, const Matrix *m, int64_t from,
                          int64_t to, int gelu) {
    if (m->form == INT8)
        kernels->multiply_int8(y, q, rows, m, from, to);
    else if (m->form == BY_ROWS)
        kernels->multiply_rows(y, x, rows, m, from, to);
    else
        kernels->multiply_columns(y, x, rows, m, from, to);
    for (int64_t r = 0; gelu && r < rows; r++) kernels->gelu(y + r * m->out + from, to - from);
}

/* y = x W^T + bias for the rows [start, end) of x, then GELU if `gelu`; y begins with row `start`. Of few rows each thread
 * computes a part of the outputs, from its part of the weights. Of many it takes one small part after the other, so that
 * threads do not wait long for one that shares its core with another program. */
static void multiply(float *y, const float *x, const Quantized *all, int64_t start, int64_t end, const Matrix *m,
                     int gelu) {
    int64_t rows = end - start, blocks = all->blocks, stride = all->stride;
    x += start * m->in;
    Quantized q = {all->values + start * stride, all->scales + start * blocks, all->offsets + start * blocks, stride, blocks};
    if (rows < SHARED_ROWS) {
        int64_t panels = (m->out + LANES - 1) / LANES;
        int64_t from = panels * THREAD / THREADS * LANES, to = panels * (THREAD + 1) / THREADS * LANES;
        multiply_part(y, x, &q, rows, m, from, to < m->out ? to : m->out, gelu);
#pragma omp barrier
        return;
    }
    /* In int8, rows are prepared again for each part of the outputs; in float32, weights for each part of the rows. */
    int64_t most = m->form == INT8 ? INT8_ROWS : rows, widest = m->form == INT8 ? 512 : 128;
    int64_t down = (rows + most - 1) / most, parts = (m->form == INT8 ? 2 : 4) * THREADS;
    int64_t columns = (m->out * down + parts - 1) / parts; /* then rounded up to two panels */
    columns = (columns + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    columns = columns < widest ? columns : widest;
    int64_t across = (m->out + columns - 1) / columns;
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < across * down; part++) {
        int64_t from = part % across * columns, to = from + columns < m->out ? from + columns : m->out;
        int64_t r = part / across * most, count = rows - r < most ? rows - r : most;
        Quantized of_part = {q.values + r * stride, q.scales + r * blocks, q.offsets + r * blocks, stride, blocks};
        multiply_part(y + r * m->out, x + r * m->in, &of_part, count, m, from, to, gelu);
    }
}

static int64_t rounded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* The number of rows that a thread computes the attention of, one group after the other. */
static int64_t group_size(int64_t rows) { return rows / 4 + 1 < QUERIES ? rows / 4 + 1 : QUERIES; }

/* The floats that a thread needs for the scores of a group and for 16 keys. */
static int64_t scores_size(const Model *m, int64_t rows) {
    return group_size(rows) * rounded(m->n_positions) + m->n_embd / m->n_head * LANES;
}

/* Writes the new keys and values to the cache, then computes the attention of each row from `first` on to the positions
 * up to its own. */
static void attention(const Model *m, const Layer *layer, const Rows *rows, int64_t first, Work *w) {
    int64_t c = m->n_embd, width = c / m->n_head;
#pragma omp for schedule(static) collapse(2)
    for (int64_t r = 0; r < rows->count; r++)
        for (int64_t h = 0; h < m->n_head; h++) {
            const float *key = w->qkv + r * 3 * c + c + h * width;
            int64_t at = ((rows->sequences[r] * m->n_head + h) * m->n_positions + rows->positions[r]) * width;
            memcpy(layer->keys + at, key, width * sizeof *key);
            memcpy(layer->values + at, key + c, width * sizeof *key);
        }
    int64_t rest = rows->count - first;
    if (rest <= 0) return; /* the logits begin in a later part of the rows */
    int64_t size = group_size(rest), groups = (rest + size - 1) / size;
    float *scores = w->scores + THREAD * scores_size(m, rows->count);
#pragma omp for schedule(dynamic) collapse(2)
    for (int64_t h = 0; h < m->n_head; h++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t r = first + g * size, end = r + size < rows->count ? r + size : rows->count;
            for (int64_t queries; r < end; r += queries) {
                int64_t sequence = rows->sequences[r], position = rows->positions[r];
                for (queries = 1; r + queries < end; queries++)
                    if (rows->sequences[r + queries] != sequence || rows->positions[r + queries] != position + queries)
                        break;
                int64_t start = (sequence * m->n_head + h) * m->n_positions * width;
                kernels->attend(w->normed + r * c + h * width, w->qkv + r * 3 * c + h * width, queries, c,
                                layer->keys + start, layer->values + start, position + 1, width, scores,
                                rounded(m->n_positions));
            }
        }
}

static void step(const Model *m, const Rows *rows, Work *w, float *logits) {
    int64_t n = rows->count, c = m->n_embd, first = 0;
    embed(m, rows, w);
    for (const Layer *l = m->layers; l < m->layers + m->n_layer; l++) {
        norm(m, 0, n, l->attention_norm_weight, l->attention_norm_bias, l->qkv_proj.form, w);
        multiply(w->qkv, w->normed, &w->narrow, 0, n, &l->qkv_proj, 0);
        if (l == m->layers + m->n_layer - 1) first = rows->logits_from; /* of other rows only keys and values count */
        attention(m, l, rows, first, w);
        if (first >= n) return;
        quantize(&w->narrow, w->normed, first, n, &l->out_proj);
        multiply(w->added + first * c, w->normed, &w->narrow, first, n, &l->out_proj, 0);
        norm(m, first, n, l->mlp_norm_weight, l->mlp_norm_bias, l->up_proj.form, w);
        multiply(w->hidden + first * 4 * c, w->normed, &w->narrow, first, n, &l->up_proj, 1);
        quantize(&w->wide, w->hidden, first, n, &l->down_proj);
        multiply(w->added + first * c, w->hidden, &w->wide, first, n, &l->down_proj, 0);
    }
    norm(m, first, n, m->final_norm_weight, m->final_norm_bias, m->head.form, w);
    multiply(logits, w->normed, &w->narrow, first, n, &m->head, 0);
}

/* Takes `bytes`, rounded up to a cache line, from an allocation of which *used are taken; returns their address. */
static void *take(char *memory, int64_t *used, int64_t bytes) {
    void *address = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return address;
}

/* Places the buffers for `rows` rows in `memory`, which is aligned to 64 bytes. Returns their size, also for NULL. */
static int64_t lay_out(Work *w, char *memory, const Model *m, int64_t rows, int threads) {
    int64_t used = 0, c = m->n_embd, f = sizeof(float);
    w->x = take(memory, &used, rows * c * f);
    w->added = take(memory, &used, rows * c * f);
    w->normed = take(memory, &used, rows * c * f);
    w->qkv = take(memory, &used, rows * 3 * c * f);
    w->hidden = take(memory, &used, rows * 4 * c * f);
    w->scores = take(memory, &used, threads * scores_size(m, rows) * f);
    Quantized *both[] = {&w->narrow, &w->wide};
    for (int i = 0; i < 2; i++) {
        int64_t width = i ? 4 * c : c;
        both[i]->stride = (width + 3) / 4 * 4;
        both[i]->blocks = (width + BLOCK - 1) / BLOCK;
        both[i]->values = take(memory, &used, rows * both[i]->stride);
        both[i]->scales = take(memory, &used, rows * both[i]->blocks * f);
        both[i]->offsets = take(memory, &used, rows * both[i]->blocks * f);
    }
    return used;
}

/* Reads `rows->count` ids, at most MAX_ROWS at a time, appends them to the cache, and writes logits of
 * shape (count - logits_from, vocab_size). Returns 0; OUT_OF_MEMORY if there is no memory for the buffers; OUT_OF_RANGE
 * if an id or a position is outside its embedding. */
int minigpt_step(const Model *m, const Rows *rows, float *logits, int threads) {
    Work w;
    for (int64_t r = 0; r < rows->count; r++)
        if (rows->ids[r] < 0 || rows->ids[r] >= m->vocab_size || rows->positions[r] < 0 ||
            rows->positions[r] >= m->n_positions)
            return OUT_OF_RANGE;
    int64_t at_once = rows->count < MAX_ROWS ? rows->count : MAX_ROWS;
    char *memory = malloc(lay_out(&w, NULL, m, at_once, threads) + 64);
    if (memory == NULL) return OUT_OF_MEMORY;
    lay_out(&w, memory + (64 - (uintptr_t)memory % 64) % 64, m, at_once, threads);
#pragma omp parallel num_threads(threads)
    for (int64_t begin = 0; begin < rows->count; begin += at_once) {
        int64_t count = rows->count - begin < at_once ? rows->count - begin : at_once;
        int64_t from = rows->logits_from > begin ? rows->logits_from - begin : 0;
        int64_t written = begin + from - rows->logits_from;
        Rows chunk = {rows->ids + begin, rows->positions + begin, rows->sequences + begin, count, from};
        step(m, &chunk, &w, logits + written * m->vocab_size);
    }
    free(memory);
    return 0;
}
