/* What a library was compiled with and for, told by the library itself: a cache outlives the compiler. */
#pragma once

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "an unknown compiler"
#endif

#if defined(__AVX512F__)
#define INSTRUCTION_SET "AVX-512"
#elif defined(__AVX2__)
#define INSTRUCTION_SET "AVX2"
#elif defined(__AVX__)
#define INSTRUCTION_SET "AVX"
#elif defined(__SSE2__)
#define INSTRUCTION_SET "SSE2"
#elif defined(__ARM_FEATURE_SVE)
#define INSTRUCTION_SET "SVE"
#elif defined(__ARM_NEON)
#define INSTRUCTION_SET "NEON"
#else
#define INSTRUCTION_SET "no vector instructions we know"
#endif

const char *compiler(void) { return COMPILER; }
const char *instruction_set(void) { return INSTRUCTION_SET; }
