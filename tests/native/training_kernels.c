/* Compares every kernel of training.c, for every instruction set of the processor, with the same arithmetic in double
 * precision, at difficult lengths and in exactly as much memory as each needs. Prints the largest error of each as a
 * fraction of its bound, and fails if one is above 1, or if another instruction set gives other bits.
 *
 * Rounding to the nearest bfloat16 changes a result by at most 2^-8 of it. The arithmetic in float32 adds an error of at
 * most 1e-5 of the terms that the result is a sum of.
 */

#include <stdio.h>
#include "training.c"

static uint32_t state;
static double worst; /* the largest error so far, as a fraction of its bound */
static uint64_t bits; /* of all results so far */
static int failed;

static float float_of(uint16_t x) {
    uint32_t b = (uint32_t)x << 16;
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

/* `count` bfloat16 numbers up to `size`, with a few large ones. */
static uint16_t *numbers(int64_t count, double size) {
    uint16_t *p = malloc(count * sizeof *p);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        float f = (float)(((double)(state >> 8) / (1 << 24) - 0.5) * 2 * size * (state % 37 ? 1 : 30));
        uint32_t b;
        memcpy(&b, &f, sizeof b);
        p[i] = (uint16_t)(b >> 16);
    }
    return p;
}

static double larger(double a, double b) { return a > b ? a : b; }

static void check(uint16_t found, double exact, double terms) {
    double error = fabs(float_of(found) - exact) / (0x1p-8 * fabs(exact) + 1e-5 * terms + 1e-37);
    if (!(error <= worst)) worst = error; /* NaN too */
    bits = bits * 31 + found;
}

static double gate(double x) { return 1 / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))); }

static void gelu(int64_t n) {
    uint16_t *x = numbers(n, 3), *dy = numbers(n, 1), *y = malloc(n * sizeof *y);
    minigpt_gelu(y, x, n, 2);
    for (int64_t i = 0; i < n; i++) check(y[i], float_of(x[i]) * gate(float_of(x[i])), fabs(float_of(x[i])));
    minigpt_gelu_gradient(y, dy, x, n, 2);
    for (int64_t i = 0; i < n; i++) {
        double v = float_of(x[i]), g = gate(v), du = sqrt(2 / 3.14159265358979323846) * (1 + 3 * 0.044715 * v * v);
        double slope = fabs(v * g * (1 - g) * 2 * du);
        check(y[i], float_of(dy[i]) * (g + v * g * (1 - g) * 2 * du), fabs(float_of(dy[i])) * (1 + slope));
    }
    free(x), free(dy), free(y);
}

static void softmax(int64_t length) {
    int64_t heads = 3, count = heads * length * length;
    uint16_t *x = numbers(count, 2), *y = malloc(count * sizeof *y), *dy = numbers(count, 1), *dx = malloc(count * sizeof *dx);
    float *buffer = malloc(2 * ((length + 15) / 16 * 16) * sizeof *buffer);
    double scale = 0.25;
    memcpy(y, x, count * sizeof *y);
    minigpt_causal_softmax(y, heads, length, (float)scale, buffer, 2);
    minigpt_causal_softmax_gradient(dx, dy, y, heads, length, (float)scale, 2);
    for (int64_t row = 0; row < heads * length; row++) {
        int64_t keys = row % length + 1, at = row * length;
        double largest = -INFINITY, total = 0, sum = 0, size = 0;
        for (int64_t k = 0; k < keys; k++) largest = larger(largest, scale * float_of(x[at + k]));
        for (int64_t k = 0; k < keys; k++) {
            total += exp(scale * float_of(x[at + k]) - largest);
            sum += (double)float_of(y[at + k]) * float_of(dy[at + k]);
            size += fabs((double)float_of(y[at + k]) * float_of(dy[at + k]));
        }
        for (int64_t k = 0; k < length; k++) {
            double weight = k < keys ? exp(scale * float_of(x[at + k]) - largest) / total : 0, p = float_of(y[at + k]);
            check(y[at + k], weight, weight);
            check(dx[at + k], p * (float_of(dy[at + k]) - sum) * scale, p * (fabs(float_of(dy[at + k])) + size) * scale);
        }
    }
    free(x), free(y), free(dy), free(dx), free(buffer);
}

/* The distribution of n logits. */
static void distribution(double *p, const uint16_t *logits, int64_t n, double *log_total) {
    double largest = -INFINITY, total = 0;
    for (int64_t i = 0; i < n; i++) largest = larger(largest, float_of(logits[i]));
    for (int64_t i = 0; i < n; i++) p[i] = exp(float_of(logits[i]) - largest);
    for (int64_t i = 0; i < n; i++) total += p[i];
    for (int64_t i = 0; i < n; i++) p[i] /= total;
    *log_total = largest + log(total);
}

static void cross_entropy(int64_t n, int with_teacher) {
    int64_t rows = 5, stride = n + 3, count = (rows - 1) * stride + n, targets[5];
    uint16_t *logits = numbers(count, 2), *teacher = numbers(count, 2), *gradient = malloc(count * sizeof *gradient);
    float losses[5], totals[5], *buffer = malloc(2 * 2 * ((n + 15) / 16 * 16) * sizeof *buffer);
    double *p = malloc(n * sizeof *p), *q = malloc(n * sizeof *q), weight = with_teacher ? 0.375 : 0, ignored;
    for (int64_t r = 0; r < rows; r++) targets[r] = r * (n - 1) / 4;
    memcpy(gradient, logits, count * sizeof *gradient);
    if (minigpt_cross_entropy(
            gradient, with_teacher ? teacher : NULL, targets, rows, n, stride, (float)weight, losses, totals, buffer, 2))
        worst = INFINITY;
    for (int64_t r = 0; r < rows; r++) {
        double log_total, sum = 0, size = 0;
        distribution(p, logits + r * stride, n, &log_total);
        distribution(q, teacher + r * stride, n, &ignored);
        for (int64_t i = 0; i < n; i++) {
            double goal = (1 - weight) * (i == targets[r]) + weight * q[i];
            sum += goal * float_of(logits[r * stride + i]), size += goal * fabs(float_of(logits[r * stride + i]));
            check(gradient[r * stride + i], p[i] - goal, p[i] + goal);
        }
        double error = fabs(losses[r] + log(totals[r]) - (log_total - sum)) / (1e-5 * (1 + size + fabs(log_total)));
        if (!(error <= worst)) worst = error;
        for (int64_t i = n; i < stride && r < rows - 1; i++)
            if (gradient[r * stride + i] != logits[r * stride + i]) worst = INFINITY; /* the padding is not written */
    }
    targets[2] = n; /* outside the vocabulary */
    if (!minigpt_cross_entropy(gradient, NULL, targets, rows, n, stride, 0, losses, totals, buffer, 2)) worst = INFINITY;
    free(logits), free(teacher), free(gradient), free(buffer), free(p), free(q);
}

static void report(const char *set, const char *kernel) {
    printf("%s %s %.3f\n", set, kernel, worst);
    failed |= !(worst <= 1);
    worst = 0;
}

int main(void) {
    static const int64_t lengths[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 127};
    static const struct { const char *name; const Kernels *kernels; int has; } sets[] = {
#if defined(__x86_64__)
        {"avx512-vnni", &kernels_avx512, 1}, {"avx2", &kernels_avx2, 2},
#endif
        {"plain", &kernels_plain, 0},
    };
    uint64_t first = 0;
    for (size_t set = 0; set < sizeof sets / sizeof *sets; set++) {
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (sets[set].has == 1 && !(__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))) continue;
        if (sets[set].has == 2 && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) continue;
#endif
        minigpt_training_use(sets[set].name);
        if (kernels != sets[set].kernels) return 2;
        state = 1, bits = 0;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) gelu(lengths[i]);
        gelu(2 * CHUNK + 5);
        report(sets[set].name, "gelu");
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) softmax(lengths[i]);
        report(sets[set].name, "softmax");
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int with_teacher = 0; with_teacher < 2; with_teacher++) cross_entropy(lengths[i], with_teacher);
        report(sets[set].name, "cross_entropy");
        if (first && bits != first) {
            printf("%s gives other bits\n", sets[set].name);
            failed = 1;
        }
        first = bits;
    }
    return failed;
}
