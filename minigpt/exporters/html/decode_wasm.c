/* The decode step for WebAssembly: decode.c with the vectors of 4 lanes that WebAssembly has.
 *
 * `make wasm` compiles it twice: with 128-bit SIMD, and with relaxed SIMD, whose dot product does in one instruction
 * what takes eight without it. Both give the same logits, bit for bit. The page lays out the structures of decode.c in
 * this module's memory and calls minigpt_step; see assets/wasm_model.js.
 */

/* Weights have no offset in this memory, and are at least -127, so that they can be negated. */
#define STORED_SIGN 0
#include "../../native/decode.c"

#include <wasm_simd128.h>

#ifdef __wasm_relaxed_simd__
/* The relaxed dot product is defined only for a second operand of 7 bits: that is |a|, and the weights get its sign. */
static inline i32x4 dot4_wasm(i32x4 sum, const uint8_t *w, const int8_t *a) {
    v128_t four = wasm_v128_load32_splat(a), negative = wasm_i8x16_shr(four, 7);
    v128_t weights = wasm_i8x16_sub(wasm_v128_xor(wasm_v128_load(w), negative), negative);
    return (i32x4)wasm_i32x4_relaxed_dot_i8x16_i7x16_add(weights, wasm_i8x16_abs(four), (v128_t)sum);
}
#else
/* Bytes 0 and 2 of each four weights and activations as 16-bit integers, then bytes 1 and 3: each of the two dot
 * products adds a pair to the sum of its output. */
static inline i32x4 dot4_wasm(i32x4 sum, const uint8_t *w, const int8_t *a) {
    v128_t four = wasm_v128_load32_splat(a), weights = wasm_v128_load(w);
    v128_t even = wasm_i32x4_dot_i16x8(wasm_i16x8_shr(wasm_i16x8_shl(weights, 8), 8),
                                       wasm_i16x8_shr(wasm_i16x8_shl(four, 8), 8));
    v128_t odd = wasm_i32x4_dot_i16x8(wasm_i16x8_shr(weights, 8), wasm_i16x8_shr(four, 8));
    return sum + (i32x4)even + (i32x4)odd;
}
#endif

#define ISA wasm
#define PARTS 4
#define ROWS 2
#define PANELS 1
#define WEIGHT_OFFSET 0
#define DOT4 dot4_wasm
#define FLOAT_ROWS 2
#define MULTIPLY_ADD(a, b, sum) ((sum) + (a) * (b))
#include "../../native/kernels.h"

/* Memory grows from the end of the module's own data and is never given back, except the buffers of the last step. */

extern char __heap_base;
static char *end;

/* An address of `size` new bytes, aligned to 64; NULL if the memory cannot grow. */
void *minigpt_allocate(size_t size) {
    if (end == NULL) end = &__heap_base;
    uintptr_t start = ((uintptr_t)end + 63) / 64 * 64;
    size_t have = __builtin_wasm_memory_size(0);
    if (size > UINT32_MAX - start - 65535) return NULL;
    size_t pages = (start + size + 65535) / 65536;
    if (pages > have && __builtin_wasm_memory_grow(0, pages - have) == (size_t)-1) return NULL;
    end = (char *)start + size;
    return (void *)start;
}

/* minigpt_step allocates one block and frees it before it returns: the largest so far is used again. */
void *malloc(size_t size) {
    static void *block;
    static size_t available;
    if (size > available) {
        void *larger = minigpt_allocate(size);
        if (larger == NULL) return NULL;
        block = larger;
        available = size;
    }
    return block;
}

void free(void *memory) { (void)memory; }

/* As minigpt_step, in the same layout as the structures: 64-bit integers, 32-bit addresses. */
int minigpt_read(const Model *m, const Rows *rows, float *logits) {
    kernels = &kernels_wasm;
    return minigpt_step(m, rows, logits, 1);
}

/* Replaces each value by e^(value - highest), and returns their sum, which softmax divides by; `count` is a multiple of
 * 4. e^-87 is the least. */
float minigpt_exponentials(float *values, size_t count, float highest) {
    floats_wasm sums = {0};
    for (size_t i = 0; i < count; i += 4) {
        floats_wasm part = exponential_wasm(load_wasm(values + i) - highest);
        store_wasm(values + i, part);
        sums += part;
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
