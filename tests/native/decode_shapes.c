/* Runs decode.c with difficult shapes in exactly as much memory as each needs; test_c_code.py compiles it, with
 * sanitizers too. With an argument it prints the sizes and offsets of the structures that native.py mirrors.
 */

#include <stddef.h>
#include <stdio.h>
#include "decode.c"

static uint32_t state = 1;

static float *numbers(int64_t count, float size) {
    float *p = malloc(count * sizeof *p);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        p[i] = ((float)(state >> 8) / (1 << 24) - 0.5f) * 2 * size;
    }
    return p;
}

static Matrix matrix(int64_t out, int64_t in, int biased) {
    return (Matrix){numbers(out * in, 2 / sqrtf((float)in)), NULL, biased ? numbers(out, 1) : NULL, in, out, BY_ROWS};
}

/* The same matrix in another form. */
static Matrix converted(Matrix m, int form, int threads) {
    if (form == BY_ROWS) return m;
    const float *rows = m.weight;
    float *columns = malloc(m.out * m.in * sizeof *columns);
    for (int64_t o = 0; o < m.out; o++)
        for (int64_t i = 0; i < m.in; i++) columns[i * m.out + o] = rows[o * m.in + i];
    Matrix found = {columns, NULL, m.bias, m.in, m.out, BY_COLUMNS};
    if (form == BY_COLUMNS) return found;
    uint8_t *packed = malloc((m.out + 15) / 16 * 16 * ((m.in + 3) / 4 * 4));
    float *scale = malloc((m.out + 15) / 16 * 16 * sizeof *scale);
    minigpt_pack(packed, scale, form == INT8 ? &m : &found, threads); /* INT8 + 1 packs it from its columns */
    free(columns);
    return (Matrix){packed, scale, m.bias, m.in, m.out, INT8};
}

static void release(Matrix m) {
    free((void *)m.weight);
    free((void *)m.scale);
}

enum { LAYERS = 2, SEQUENCES = 2, FORMS = 4 };

/* Whether one of a step's buffers, which are in one allocation, is smaller than it must be or not aligned. */
static int too_small(const Model *m, int64_t rows, int threads) {
    Work w;
    int64_t c = m->n_embd, bytes = lay_out(&w, NULL, m, rows, threads), group = rows / 4 + 1;
    int64_t scores = (group < 32 ? group : 32) * ((m->n_positions + 15) / 16 * 16) + c / m->n_head * 16;
    char *memory = malloc(bytes), *end = memory + bytes;
    lay_out(&w, memory, m, rows, threads);
    char *begins[] = {(char *)w.x, (char *)w.added, (char *)w.normed, (char *)w.qkv, (char *)w.hidden, (char *)w.scores,
                      (char *)w.narrow.values, (char *)w.narrow.scales, (char *)w.narrow.offsets,
                      (char *)w.wide.values, (char *)w.wide.scales, (char *)w.wide.offsets, end};
    int64_t sizes[] = {4 * rows * c, 4 * rows * c, 4 * rows * c, 12 * rows * c, 16 * rows * c, 4 * threads * scores,
                       rows * ((c + 3) / 4 * 4), 4 * rows * ((c + 63) / 64), 4 * rows * ((c + 63) / 64),
                       rows * 4 * c, 4 * rows * ((c + 15) / 16), 4 * rows * ((c + 15) / 16)};
    int failed = 0;
    for (int i = 0; i < 12; i++) failed |= begins[i + 1] - begins[i] < sizes[i] || (begins[i] - memory) % 64;
    free(memory);
    return failed;
}

/* Whether the logits differ from those of the plain kernels by more than rounding. In int8 a rounding of the input may
 * change an activation to the next integer; that moves the logits by less than all of the quantization does. */
static int differ(float *const *logits, float *const *plain, int64_t count) {
    float quantization = 0;
    for (int64_t i = 0; plain[0] && i < count; i++) quantization = fmaxf(quantization, fabsf(plain[INT8][i] - plain[0][i]));
    for (int form = 0; plain[0] && form < FORMS; form++)
        for (int64_t i = 0; i < count; i++) {
            float bound = 1e-3f * (1 + fabsf(plain[form][i])) + (form < INT8 ? 0 : quantization);
            if (!(fabsf(logits[form][i] - plain[form][i]) <= bound)) return 1;
        }
    return 0;
}

/* Compares the logits of two sequences, read in two steps, between all forms of the weights, with those of one step,
 * and with `plain`, those of the plain kernels, which the first call for a shape stores; 0 if they agree. */
static int shape(int64_t width, int64_t heads, int64_t vocabulary, int64_t positions, int threads, float **plain) {
    int64_t c = width * heads, count = SEQUENCES * positions, cached = SEQUENCES * positions * c;
    Layer layers[LAYERS], now[LAYERS];
    float *floats[6 * LAYERS + 4], *norms[4], *logits[FORMS], *head = numbers(vocabulary * c, 1);
    int64_t *rows = malloc(3 * count * sizeof *rows);
    int failed = 0, used = 0;
    for (int64_t r = 0; r < count; r++) {
        rows[r] = r % vocabulary;
        rows[count + r] = r / SEQUENCES;
        rows[2 * count + r] = r % SEQUENCES;
    }
    for (int i = 0; i < LAYERS; i++) {
        for (int j = 0; j < 4; j++) norms[j] = floats[used++] = numbers(c, 1);
        float *keys = floats[used++] = malloc(cached * sizeof(float));
        float *values = floats[used++] = malloc(cached * sizeof(float));
        layers[i] = (Layer){norms[0], norms[1], norms[2], norms[3], matrix(3 * c, c, 1), matrix(c, c, 1),
                            matrix(4 * c, c, 1), matrix(c, 4 * c, 1), keys, values};
    }
    floats[used++] = head;
    for (int j = 0; j < 3; j++) floats[used++] = numbers(j ? c : positions * c, 1);
    Model m = {LAYERS, heads, c, positions, vocabulary, 1e-5f, head, floats[used - 3], floats[used - 2],
               floats[used - 1], {head, NULL, NULL, c, vocabulary, BY_ROWS}, now};
    failed |= too_small(&m, count, threads);
    for (int form = 0; form < FORMS; form++) {
        for (int i = 0; i < LAYERS; i++) {
            now[i] = layers[i];
            Matrix *own[] = {&now[i].qkv_proj, &now[i].out_proj, &now[i].up_proj, &now[i].down_proj};
            for (int j = 0; j < 4; j++) *own[j] = converted(*own[j], form, threads);
        }
        Matrix head_by_rows = m.head;
        m.head = converted(head_by_rows, form, threads);
        int64_t first = count / 3, skipped = first / 2;
        logits[form] = malloc((count - skipped) * vocabulary * sizeof(float));
        Rows begin = {rows, rows + count, rows + 2 * count, first, skipped};
        Rows rest = {rows + first, rows + count + first, rows + 2 * count + first, count - first, 0};
        failed |= first > 0 && minigpt_step(&m, &begin, logits[form], threads);
        failed |= minigpt_step(&m, &rest, logits[form] + (first - skipped) * vocabulary, threads);
        for (int64_t i = 0; i < (count - skipped) * vocabulary; i++) {
            float expected = logits[form / 2 * 2][i]; /* the order of the weights has no effect */
            failed |= !(fabsf(logits[form][i] - expected) <= (form < 2 ? 1e-3f * (1 + fabsf(expected)) : 0));
        }
        Rows whole = {rows, rows + count, rows + 2 * count, count, count - 1};
        float *last = malloc(vocabulary * sizeof *last);
        failed |= minigpt_step(&m, &whole, last, threads);
        for (int64_t i = 0; i < vocabulary; i++) {
            float expected = logits[form][(count - skipped - 1) * vocabulary + i];
            failed |= !(fabsf(last[i] - expected) <= (form < 2 ? 1e-3f * (1 + fabsf(expected)) : 0));
        }
        free(last);
        if (form != BY_ROWS) {
            for (int i = 0; i < LAYERS; i++) {
                Matrix own[] = {now[i].qkv_proj, now[i].out_proj, now[i].up_proj, now[i].down_proj};
                for (int j = 0; j < 4; j++) release(own[j]);
            }
            release(m.head);
        }
        m.head = head_by_rows;
    }
    failed |= differ(logits, plain, (count - count / 3 / 2) * vocabulary);
    rows[count - 1] = vocabulary;
    failed |= minigpt_step(&m, &(Rows){rows, rows + count, rows + 2 * count, count, count}, NULL, 1) != OUT_OF_RANGE;
    for (int i = 0; i < LAYERS; i++) {
        Matrix own[] = {layers[i].qkv_proj, layers[i].out_proj, layers[i].up_proj, layers[i].down_proj};
        for (int j = 0; j < 4; j++) {
            release(own[j]);
            free((void *)own[j].bias);
        }
    }
    for (int i = 0; i < used; i++) free(floats[i]);
    for (int form = 0; form < FORMS; form++) {
        if (plain[form] == NULL)
            plain[form] = logits[form];
        else
            free(logits[form]);
    }
    free(rows);
    return failed;
}

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, name) printf(#type "." #name " %zu %zu\n", offsetof(type, name), sizeof ((type *)NULL)->name)

static void structures(void) {
    SIZE(Matrix), FIELD(Matrix, weight), FIELD(Matrix, scale), FIELD(Matrix, bias), FIELD(Matrix, in);
    FIELD(Matrix, out), FIELD(Matrix, form);
    SIZE(Layer), FIELD(Layer, attention_norm_weight), FIELD(Layer, attention_norm_bias), FIELD(Layer, mlp_norm_weight);
    FIELD(Layer, mlp_norm_bias), FIELD(Layer, qkv_proj), FIELD(Layer, out_proj), FIELD(Layer, up_proj);
    FIELD(Layer, down_proj), FIELD(Layer, keys), FIELD(Layer, values);
    SIZE(Model), FIELD(Model, n_layer), FIELD(Model, n_head), FIELD(Model, n_embd), FIELD(Model, n_positions);
    FIELD(Model, vocab_size), FIELD(Model, epsilon), FIELD(Model, token_embedding), FIELD(Model, position_embedding);
    FIELD(Model, final_norm_weight), FIELD(Model, final_norm_bias), FIELD(Model, head), FIELD(Model, layers);
    SIZE(Rows), FIELD(Rows, ids), FIELD(Rows, positions), FIELD(Rows, sequences), FIELD(Rows, count);
    FIELD(Rows, logits_from);
}

int main(int count, char **arguments) {
    static const int64_t shapes[][4] = {/* head width, heads, vocabulary, positions */
        {1, 1, 1, 1}, {3, 2, 5, 3}, {17, 3, 37, 9}, {16, 1, 16, 16}, {5, 13, 33, 4}, {64, 1, 100, 70}, {33, 2, 257, 2},
        {2, 1, 3, 260}, /* read in one step, the first MAX_ROWS rows end 7 before the only one with logits */
    };
    (void)arguments;
    if (count > 1) return structures(), 0;
    float *plain[sizeof shapes / sizeof *shapes][FORMS] = {{0}};
    for (int set = N_SETS - 1; set >= 0; set--) { /* the plain kernels are the last */
        if (minigpt_use(SETS[set].name) == NULL) continue;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int threads = 1; threads <= 3; threads += 2) {
                state = 1 + i;
                if (shape(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], threads, plain[i])) {
                    printf("%s, shape %zu, %d threads: the logits differ\n", SETS[set].name, i, threads);
                    return 1;
                }
            }
        printf("%s\n", SETS[set].name);
    }
    return 0;
}
