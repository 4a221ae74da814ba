/* What decode.c needs of the C library, which WebAssembly has instructions for. */
#define INFINITY __builtin_inff()
#define sqrtf __builtin_sqrtf
