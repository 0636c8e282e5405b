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
template <class V> struct shim_items;
template <class T, int N> struct shim_vector;
#define SHIM_VECTOR(T, N, ...)                                                    \
    struct alignas(N * sizeof(T)) T##N {                                          \
        T __VA_ARGS__;                                                            \
        T##N() = default;                                                         \
        explicit T##N(T value) { for (int k = 0; k < N; ++k) (&s0)[k] = value; }  \
    };                                                                            \
    template <> struct shim_items<T##N> { typedef T item; enum { count = N }; };  \
    template <> struct shim_vector<T, N> { typedef T##N type; };
#define SHIM_VECTORS(T)                                                           \
    SHIM_VECTOR(T, 2, s0, s1)                                                     \
    SHIM_VECTOR(T, 4, s0, s1, s2, s3)                                             \
    SHIM_VECTOR(T, 8, s0, s1, s2, s3, s4, s5, s6, s7)                             \
    SHIM_VECTOR(T, 16, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, sa, sb, sc, sd, se, sf)
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

// The whole numbers of a size that comparisons of vectors give: -1 or 0.
template <size_t size> struct shim_mask { typedef long item; };
template <> struct shim_mask<1> { typedef char item; };
template <> struct shim_mask<4> { typedef int item; };
#define SHIM_V template <class V, class T = typename shim_items<V>::item>
#define SHIM_EACH(R, value)                                                       \
    R result;                                                                     \
    for (int k = 0; k < shim_items<V>::count; ++k) (&result.s0)[k] = value;       \
    return result;
#define SHIM_INFIX(sign)                                                          \
    SHIM_V V operator sign(V a, V b) { SHIM_EACH(V, (T)((&a.s0)[k] sign (&b.s0)[k])) }
SHIM_INFIX(+) SHIM_INFIX(-) SHIM_INFIX(*) SHIM_INFIX(/) SHIM_INFIX(&) SHIM_INFIX(|) SHIM_INFIX(^)
SHIM_V V operator-(V a) { SHIM_EACH(V, -(&a.s0)[k]) }
SHIM_V V operator~(V a) { SHIM_EACH(V, ~(&a.s0)[k]) }
template <class V, class T = typename shim_items<V>::item>
using shim_truth =
    typename shim_vector<typename shim_mask<sizeof(T)>::item, shim_items<V>::count>::type;
#define SHIM_COMPARISON(sign)                                                     \
    SHIM_V shim_truth<V> operator sign(V a, V b) {                                \
        SHIM_EACH(shim_truth<V>, (&a.s0)[k] sign (&b.s0)[k] ? -1 : 0)             \
    }
SHIM_COMPARISON(<) SHIM_COMPARISON(<=) SHIM_COMPARISON(>) SHIM_COMPARISON(>=)
SHIM_COMPARISON(==) SHIM_COMPARISON(!=)
SHIM_V V select(V b, V a, shim_truth<V> c) {
    SHIM_EACH(V, (&c.s0)[k] < 0 ? (&a.s0)[k] : (&b.s0)[k])
}
#define SHIM_WIDTH(N)                                                             \
    template <class T> typename shim_vector<T, N>::type vload##N(size_t, const T* data) { \
        typename shim_vector<T, N>::type result;                                  \
        for (int k = 0; k < N; ++k) (&result.s0)[k] = data[k];                    \
        return result;                                                            \
    }                                                                             \
    SHIM_V void vstore##N(V value, size_t, T* data) {                             \
        for (int k = 0; k < N; ++k) data[k] = (&value.s0)[k];                     \
    }                                                                             \
    SHIM_CONVERT(uchar##N) SHIM_CONVERT(int##N) SHIM_CONVERT(long##N)             \
    SHIM_CONVERT(float##N) SHIM_CONVERT(double##N)
#define SHIM_CONVERT(R)                                                           \
    SHIM_V R convert_##R(V a) { SHIM_EACH(R, (shim_items<R>::item)(&a.s0)[k]) }
SHIM_WIDTH(2) SHIM_WIDTH(4) SHIM_WIDTH(8)

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

#define SHIM_FUNCTION(name) SHIM_V V name(V a) { SHIM_EACH(V, name((&a.s0)[k])) }
SHIM_FUNCTION(exp) SHIM_FUNCTION(expm1) SHIM_FUNCTION(log) SHIM_FUNCTION(log2) SHIM_FUNCTION(log10)
SHIM_FUNCTION(log1p) SHIM_FUNCTION(sqrt) SHIM_FUNCTION(rsqrt) SHIM_FUNCTION(sin) SHIM_FUNCTION(cos)
SHIM_FUNCTION(tanh) SHIM_FUNCTION(erf) SHIM_FUNCTION(erfc) SHIM_FUNCTION(floor) SHIM_FUNCTION(ceil)
SHIM_FUNCTION(rint) SHIM_FUNCTION(trunc) SHIM_FUNCTION(fabs)
SHIM_V V pow(V a, V b) { SHIM_EACH(V, pow((&a.s0)[k], (&b.s0)[k])) }

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
