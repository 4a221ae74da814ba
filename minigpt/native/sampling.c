/* Draws next tokens from logits, as generation/sampling.py does with PyTorch, which sorts more tokens than may be drawn and
 * takes some 25 operations. minigpt/native/drawing.py calls the last function through ctypes.
 */

#include "platform.h"

#define ISA plain /* the same bits on every processor */
#define PARTS 4
#define MULTIPLY_ADD(a, b, sum) ((sum) + (a) * (b))
#include "vectors.h"

enum { BLOCK = 1024, STEP = 16 };     /* numbers that are added in single precision; that are computed at once */
enum { FACTOR = 8 };                  /* between two thresholds for the weights of tokens */
enum { DIGITS = 3, DIGIT_BITS = 11 }; /* of a weight's bits, by which tokens are sorted */

/* A token that may be drawn. Its weight is its probability in relation to that of the most likely token. */
typedef struct {
    float weight;
    int32_t id;
} Token;

/* Which tokens may be drawn: top-k, then top-p, then min-p. 0 for `top_k`, 1 for `top_p` and 0 for `min_p` exclude none. */
typedef struct {
    double temperature, top_p, min_p;
    int64_t top_k;
} Truncation;

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* weights = e^((logits - their largest) * inverse), with the inverse temperature; returns their sum. It is NaN if a logit is
 * NaN, or the largest is infinite. There is room for n numbers, rounded up to a multiple of STEP. */
static double exponentials(float *weights, const float *logits, int64_t n, float inverse) {
    int64_t whole = n / WIDTH * WIDTH;
    floats_plain maxima = broadcast_plain(-INFINITY), invalid = {0};
    float largest = -INFINITY;
    for (int64_t i = 0; i < whole; i += WIDTH) {
        floats_plain x = load_plain(logits + i);
        maxima = larger_plain(maxima, x); /* x where it is NaN */
        invalid += (floats_plain)((integers_plain)(x != x) & (integers_plain)broadcast_plain(1));
    }
    for (int j = 0; j < WIDTH; j++) {
        largest = maxima[j] > largest ? maxima[j] : largest;
        if (invalid[j] > 0) return NAN;
    }
    for (int64_t i = whole; i < n; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
        if (logits[i] != logits[i]) return NAN;
    }
    if (largest - largest != 0) return NAN;
    double sum = 0;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        floats_plain sums = {0};
        for (int64_t i = begin; i < n && i < begin + BLOCK; i += STEP) {
            floats_plain x[STEP / WIDTH];
            float rest[STEP];
            for (int64_t j = 0; i + STEP > n && j < STEP; j++) rest[j] = i + j < n ? logits[i + j] : -INFINITY;
            const float *from = i + STEP > n ? rest : logits + i;
            for (int v = 0; v < STEP / WIDTH; v++) x[v] = (load_plain(from + v * WIDTH) - largest) * inverse;
            exponentiate_plain(x, STEP / WIDTH, 0);
            for (int v = 0; v < STEP / WIDTH; v++) {
                store_plain(weights + i + v * WIDTH, x[v]);
                sums += x[v];
            }
        }
        for (int j = 0; j < WIDTH; j++) sum += sums[j];
    }
    return sum;
}

/* Writes the tokens with at least the weight `least` in the order of their ids; returns their number. Blocks without such a
 * token, which are most of them, are skipped at once. */
static int64_t select_tokens(Token *tokens, const float *weights, int64_t n, float least) {
    int64_t count = 0;
    for (int64_t begin = 0; begin < n; begin += STEP) {
        integers_plain found = {0};
        for (int v = 0; v < STEP; v += WIDTH) found |= load_plain(weights + begin + v) >= least;
        if (!(found[0] | found[1] | found[2] | found[3])) continue;
        for (int64_t i = begin; i < n && i < begin + STEP; i++)
            if (weights[i] >= least) tokens[count++] = (Token){weights[i], (int32_t)i};
    }
    return count;
}

/* Writes all tokens that may be drawn, and some with less weight, in the order of their ids; returns their number. The
 * threshold is lowered until they are enough: the `top_k` largest weights, or the share `top_p` of the `sum` of all. */
static int64_t candidates(Token *tokens, const float *weights, int64_t n, const Truncation *truncation, double sum) {
    int by_mass = truncation->top_p < 1 && !truncation->top_k;
    /* Top-p after top-k counts the weight of tokens that min-p drops. A weight below 2^-53 is never drawn. */
    float least = truncation->top_k && truncation->top_p < 1 ? 0 : (float)truncation->min_p;
    least = least < 0x1p-53f ? 0x1p-53f : least;
    if (!by_mass && !truncation->top_k) return select_tokens(tokens, weights, n, least);
    /* The tokens below (1 - p) sum / n have less than 1 - p of the sum together. Half of that leaves room for rounding. */
    float bound = by_mass ? (float)((1 - truncation->top_p) * sum / n / 2) : 0;
    least = least < bound ? bound : least;
    for (float threshold = 1.0f / FACTOR;; threshold /= FACTOR) {
        int64_t count = select_tokens(tokens, weights, n, threshold > least ? threshold : least);
        double mass = 0;
        for (int64_t i = 0; by_mass && i < count; i++) mass += tokens[i].weight;
        if (threshold <= least || (by_mass ? mass >= truncation->top_p * sum : count >= truncation->top_k)) return count;
    }
}

/* Sorts tokens by their weight, the largest first, and equal ones by their id, if that was their order. `other` has room
 * for as many; returns which of both has the result. */
static Token *sort(Token *tokens, Token *other, int64_t count) {
    for (int digit = 0; digit < DIGITS; digit++) {
        int64_t starts[1 << DIGIT_BITS] = {0}, at = 0;
#define DIGIT(token) ((~bits_of((token).weight) >> digit * DIGIT_BITS) & ((1 << DIGIT_BITS) - 1))
        for (int64_t i = 0; i < count; i++) starts[DIGIT(tokens[i])]++;
        for (int value = 0; value < 1 << DIGIT_BITS; value++) {
            int64_t here = starts[value];
            starts[value] = at;
            at += here;
        }
        for (int64_t i = 0; i < count; i++) other[starts[DIGIT(tokens[i])]++] = tokens[i];
#undef DIGIT
        Token *sorted = other;
        other = tokens;
        tokens = sorted;
    }
    return tokens;
}

/* The number of the first tokens and of those that tie with the last of them. */
static int64_t with_ties(const Token *tokens, int64_t first, int64_t count) {
    while (first < count && tokens[first].weight == tokens[first - 1].weight) first++;
    return first;
}

/* How many of the sorted tokens may be drawn. `sum` is that of all weights. */
static int64_t truncate_tokens(const Token *tokens, int64_t count, const Truncation *truncation, double sum) {
    if (truncation->top_k) {
        if (truncation->top_k < count) count = with_ties(tokens, truncation->top_k, count);
        sum = 0;
        for (int64_t i = 0; i < count; i++) sum += tokens[i].weight;
    }
    if (truncation->top_p < 1) {
        int64_t kept = 1;
        for (double before = tokens[0].weight; kept < count && before < truncation->top_p * sum; kept++)
            before += tokens[kept].weight;
        count = with_ties(tokens, kept, count);
    }
    while (count > 1 && tokens[count - 1].weight < truncation->min_p) count--;
    return count;
}

/* The index of the weight that the number in [0, 1) selects: weights are counted in units of 2^-52 of their sum, whose sums
 * are exact in any order. `stride` is the distance between two weights in floats. */
static int64_t draw(const float *weights, int64_t stride, int64_t count, double number) {
    double sum = 0;
    int64_t total = 0, before = 0;
    for (int64_t i = 0; i < count; i++) sum += weights[i * stride];
    double units = 4503599627370496.0 / sum; /* 2^52 / sum */
    for (int64_t i = 0; i < count; i++) total += (int64_t)(weights[i * stride] * units);
    int64_t target = (int64_t)(number * (double)total);
    for (int64_t i = 0; i < count; i++) {
        before += (int64_t)(weights[i * stride] * units);
        if (before > target) return i;
    }
    return -1; /* does not happen: target < total */
}

/* The token that the number in [0, 1) selects from n logits; -1 if the largest logit is infinite or one is NaN, or there is
 * no memory. The tokens that may be drawn are in the order of their weights, or without a truncation of their ids. */
static int64_t draw_token(const float *logits, int64_t n, Truncation truncation, double number) {
    int64_t padded = (n + STEP - 1) / STEP * STEP, chosen = -1;
    float *weights = malloc(padded * sizeof *weights + 2 * n * sizeof(Token));
    if (weights == NULL) return -1;
    Token *tokens = (Token *)(weights + padded);
    int is_truncated = truncation.top_k || truncation.top_p < 1 || truncation.min_p > 0;
    if (truncation.top_k >= n) truncation.top_k = 0;
    double sum = exponentials(weights, logits, n, (float)(1 / truncation.temperature));
    if (sum == sum && !is_truncated)
        chosen = draw(weights, 1, n, number);
    else if (sum == sum) {
        int64_t count = candidates(tokens, weights, n, &truncation, sum);
        tokens = sort(tokens, tokens + count, count);
        count = truncate_tokens(tokens, count, &truncation, sum);
        int64_t at = draw(&tokens->weight, sizeof(Token) / sizeof(float), count, number);
        chosen = at < 0 ? -1 : tokens[at].id;
    }
    free(weights);
    return chosen;
}

/* The tokens of the rows of logits, (rows, n), that their numbers select; each is the one that the row has alone. */
void minigpt_draw(int64_t *tokens, const float *logits, const double *numbers, int64_t rows, int64_t n,
                  const Truncation *truncation, int threads) {
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) tokens[r] = draw_token(logits + r * n, n, *truncation, numbers[r]);
}
