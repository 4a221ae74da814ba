/* Draws tokens from random logits of many sizes with sampling.c, from memory that ends with them, and prints the tokens. */

#include "sampling.c"

#include <stdio.h>

static uint64_t state = 88172645463325252u;

static double random_number(void) { /* in [0, 1) */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

int main(void) {
    const int64_t sizes[] = {1, 2, 3, 15, 16, 17, 63, 64, 65, 1000, 1023, 1025, 5003, 50257};
    const Truncation truncations[] = {
        {1, 1, 0, 0}, {0.8, 0.95, 0, 0}, {1e-30, 0.5, 0, 0}, {1.5, 1 - 1e-16, 0, 0}, {1, 1e-9, 0, 0}, {1, 1, 0.02, 0},
        {1, 1, 1, 0}, {1, 0.9, 0, 40}, {1, 1, 0, 1}, {1000, 1, 0, 50257}, {1, 0.7, 0.1, 300}, {1, 1, 0, 1000},
    };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        float *logits = malloc(n * sizeof *logits);
        printf("%lld:", (long long)n);
        for (size_t t = 0; t < sizeof truncations / sizeof *truncations; t++)
            for (int kind = 0; kind < 6; kind++) {
                Truncation truncation = truncations[t];
                for (int64_t i = 0; i < n; i++) {
                    float x = (float)(20 * random_number() - 10);
                    logits[i] = kind == 1 ? 0 : kind == 2 ? (float)(int)x : kind == 3 && i % 3 ? -INFINITY : x;
                }
                if (kind == 4) logits[n / 2] = NAN;
                if (kind == 5) logits[n - 1] = INFINITY;
                double number = kind ? random_number() : 1 - 0x1p-53;
                int64_t token;
                minigpt_draw(&token, logits, &number, 1, n, &truncation, 1);
                int expected = kind < 4 ? token >= 0 && token < n && logits[token] > -INFINITY : token == -1;
                if (!expected) {
                    printf(" truncation %zu, kind %d: %lld\n", t, kind, (long long)token);
                    return 1;
                }
                printf(" %lld", (long long)token);
            }
        printf("\n");
        free(logits);
    }
    return 0;
}
