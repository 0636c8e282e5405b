// Halves, as their bits: widened exactly, and rounded to nearest, ties to even.
__device__ __forceinline__ float kf_from_f16(unsigned short half) {
    // The exponent's bias differs by 112; the product is exact for subnormals, too.
    const unsigned bits = (unsigned)(half & 0x7fffu) << 13;
    const float scaled = __uint_as_float(bits) * 0x1p112f;
    const unsigned wide = bits >= 0x0f800000u ? bits | 0x7f800000u : __float_as_uint(scaled);
    return __uint_as_float(wide | (unsigned)(half & 0x8000u) << 16);
}

__device__ __forceinline__ unsigned short kf_to_f16(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned sign = bits >> 16 & 0x8000u;
    const unsigned size = bits & 0x7fffffffu;
    unsigned half;
    if (size >= 0x47800000u) {
        half = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (size < 0x38800000u) {
        // Subnormal halves: adding 0.5 shifts their last bit to the last bit of float32.
        half = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u;
    } else {
        half = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    }
    return (unsigned short)(half | sign);
}

__device__ __forceinline__ float kf_from_bf16(unsigned short half) {
    return __uint_as_float((unsigned)half << 16);
}

__device__ __forceinline__ unsigned short kf_to_bf16(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(bits >> 16 | 0x40u);
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Rounds float64 to float32 to odd: the last bit is set if any digit was cut off, so that rounding the
// result to a half is the same as rounding once.
__device__ __forceinline__ float kf_odd(double value) {
    const float near = (float)value;
    if ((double)near == value || value != value) return near;
    unsigned bits = __float_as_uint(near);
    if (fabs((double)near) > fabs(value)) bits -= 1u;
    return __uint_as_float(bits | 1u);
}

__device__ __forceinline__ unsigned short kf_to_f16(double value) {
    return kf_to_f16(kf_odd(value));
}

__device__ __forceinline__ unsigned short kf_to_bf16(double value) {
    return kf_to_bf16(kf_odd(value));
}
