// The part of CUDA with which emitted kernels can be compiled as C++.
#pragma once

#include "shim.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

static inline float __uint_as_float(unsigned bits) { return shim_bits<float>(bits); }
static inline unsigned __float_as_uint(float value) { return shim_bits<unsigned>(value); }
static inline double __longlong_as_double(long long bits) { return shim_bits<double>(bits); }
static inline float rsqrtf(float a) { return (float)(1.0 / std::sqrt((double)a)); }
static inline double rsqrt(double a) { return (double)(1.0L / std::sqrt((long double)a)); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ typedef unsigned __int128 wide;
    return (unsigned long long)((wide)a * b >> 64);
}
static inline unsigned atomicMax(unsigned* word, unsigned value) {
    const unsigned before = *word;
    if (value > before) *word = value;
    return before;
}
