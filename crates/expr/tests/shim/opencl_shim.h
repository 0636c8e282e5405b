// The part of OpenCL C with which emitted kernels can be compiled as C++.
#pragma once

#include "shim.h"

#define __kernel
#define __global
#define restrict __restrict__

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// Vectors, with OpenCL's names of their elements.
#define SHIM_VECTORS(T)                                                          \
    struct alignas(2 * sizeof(T)) T##2 { T s0, s1; };                            \
    struct alignas(4 * sizeof(T)) T##4 { T s0, s1, s2, s3; };                    \
    struct alignas(8 * sizeof(T)) T##8 { T s0, s1, s2, s3, s4, s5, s6, s7; };    \
    struct alignas(16 * sizeof(T)) T##16 {                                       \
        T s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, sa, sb, sc, sd, se, sf;        \
    };
SHIM_VECTORS(char)
SHIM_VECTORS(uchar)
SHIM_VECTORS(short)
SHIM_VECTORS(ushort)
SHIM_VECTORS(int)
SHIM_VECTORS(uint)
SHIM_VECTORS(long)
SHIM_VECTORS(ulong)
SHIM_VECTORS(float)
SHIM_VECTORS(double)

// One name for float32 and float64.
using std::exp;
using std::expm1;
using std::log;
using std::log2;
using std::log10;
using std::log1p;
using std::sqrt;
using std::sin;
using std::cos;
using std::tanh;
using std::sinh;
using std::cosh;
using std::erf;
using std::erfc;
using std::floor;
using std::ceil;
using std::rint;
using std::trunc;
using std::fabs;
using std::pow;
using std::fmod;
using std::copysign;
using std::hypot;
using std::atan2;
static inline float rsqrt(float a) { return (float)(1.0 / std::sqrt((double)a)); }
static inline double rsqrt(double a) { return (double)(1.0L / std::sqrt((long double)a)); }

static inline float as_float(uint bits) { return shim_bits<float>(bits); }
static inline uint as_uint(float value) { return shim_bits<uint>(value); }
static inline double as_double(long bits) { return shim_bits<double>(bits); }
static inline uint mul_hi(uint a, uint b) { return (uint)((ulong)a * b >> 32); }
static inline ulong mul_hi(ulong a, ulong b) {
    __extension__ typedef unsigned __int128 wide;
    return (ulong)((wide)a * b >> 64);
}
static inline uint atomic_max(uint* word, uint value) {
    const uint before = *word;
    if (value > before) *word = value;
    return before;
}
static inline size_t get_global_id(uint) {
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static inline size_t get_global_size(uint) { return (size_t)gridDim.x * blockDim.x; }
