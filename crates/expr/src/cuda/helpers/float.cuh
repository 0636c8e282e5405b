// Floats: CUDA's functions have a name per type; here they have one name for both types.
#define KF_FLOAT_FUNCTION(name)                                                              \
    __device__ __forceinline__ float kf_##name(float a) { return name##f(a); }        \
    __device__ __forceinline__ double kf_##name(double a) { return name(a); }
KF_FLOAT_FUNCTION(exp)
KF_FLOAT_FUNCTION(expm1)
KF_FLOAT_FUNCTION(log)
KF_FLOAT_FUNCTION(log2)
KF_FLOAT_FUNCTION(log10)
KF_FLOAT_FUNCTION(log1p)
KF_FLOAT_FUNCTION(sqrt)
KF_FLOAT_FUNCTION(rsqrt)
KF_FLOAT_FUNCTION(sin)
KF_FLOAT_FUNCTION(cos)
KF_FLOAT_FUNCTION(tanh)
KF_FLOAT_FUNCTION(erf)
KF_FLOAT_FUNCTION(erfc)
KF_FLOAT_FUNCTION(floor)
KF_FLOAT_FUNCTION(ceil)
KF_FLOAT_FUNCTION(rint)
KF_FLOAT_FUNCTION(trunc)
KF_FLOAT_FUNCTION(fabs)
#undef KF_FLOAT_FUNCTION

__device__ __forceinline__ float kf_pow(float a, float b) { return powf(a, b); }
__device__ __forceinline__ double kf_pow(double a, double b) { return pow(a, b); }
__device__ __forceinline__ float kf_fmod(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ double kf_fmod(double a, double b) { return fmod(a, b); }
__device__ __forceinline__ float kf_copysign(float a, float b) { return copysignf(a, b); }
__device__ __forceinline__ double kf_copysign(double a, double b) { return copysign(a, b); }

// Whether the absolute value is at most the greatest finite number.
__device__ __forceinline__ bool kf_isfinite(float a) {
    return fabsf(a) <= 0x1.fffffep+127f;
}
__device__ __forceinline__ bool kf_isfinite(double a) {
    return fabs(a) <= 0x1.fffffffffffffp+1023;
}

template <typename F>
__device__ __forceinline__ F kf_signum(F a) {
    return a > (F)0 ? (F)1 : a < (F)0 ? (F)-1 : kf_fabs(a);
}

// The logistic function, from exp(-|a|), which can't overflow.
template <typename F>
__device__ __forceinline__ F kf_sigmoid(F a) {
    const F part = kf_exp(-kf_fabs(a));
    return (a >= (F)0 ? (F)1 : part) / ((F)1 + part);
}

// The result is NaN if either operand is.
template <typename F>
__device__ __forceinline__ F kf_least(F a, F b) {
    return a < b || a != a ? a : b;
}

template <typename F>
__device__ __forceinline__ F kf_greatest(F a, F b) {
    return a > b || a != a ? a : b;
}

// The remainder, with the divisor's sign.
template <typename F>
__device__ __forceinline__ F kf_remainder(F a, F b) {
    const F rest = kf_fmod(a, b);
    if (rest == (F)0) return kf_copysign((F)0, b);
    return (rest < (F)0) != (b < (F)0) ? rest + b : rest;
}

// The quotient rounded down, so that a == quotient * b + remainder up to rounding.
template <typename F>
__device__ __forceinline__ F kf_quotient(F a, F b) {
    if (b == (F)0) return a / b;
    const F rest = kf_fmod(a, b);
    F quotient = (a - rest) / b;
    if (rest != (F)0 && (rest < (F)0) != (b < (F)0)) quotient -= (F)1;
    if (quotient == (F)0) return kf_copysign((F)0, a / b);
    const F down = kf_floor(quotient);
    return quotient - down > (F)0.5 ? down + (F)1 : down;
}
