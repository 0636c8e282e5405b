// Integers. Sums, differences and products wrap; in C only unsigned integers may, so these are used.
template <typename T>
struct kf_modular {
    typedef unsigned type;
};
template <>
struct kf_modular<long long> {
    typedef unsigned long long type;
};
template <>
struct kf_modular<unsigned long long> {
    typedef unsigned long long type;
};

template <typename T>
__device__ __forceinline__ T kf_add(T a, T b) {
    typedef typename kf_modular<T>::type U;
    return (T)((U)a + (U)b);
}

template <typename T>
__device__ __forceinline__ T kf_sub(T a, T b) {
    typedef typename kf_modular<T>::type U;
    return (T)((U)a - (U)b);
}

template <typename T>
__device__ __forceinline__ T kf_mul(T a, T b) {
    typedef typename kf_modular<T>::type U;
    return (T)((U)a * (U)b);
}

template <typename T>
__device__ __forceinline__ bool kf_negative(T a) {
    if constexpr ((T)-1 < (T)1) {
        return a < 0;
    } else {
        return false;
    }
}

// The quotient rounded down; 0 for divisor 0.
template <typename T>
__device__ __forceinline__ T kf_floordiv(T a, T b) {
    if (b == 0) return (T)0;
    if constexpr ((T)-1 < (T)1) {
        if (b == (T)-1) return kf_sub((T)0, a);
        const T quotient = (T)(a / b);
        const T rest = (T)(a % b);
        return (T)(quotient - (T)(rest != 0 && (rest < 0) != (b < 0)));
    } else {
        return (T)(a / b);
    }
}

// The remainder, with the divisor's sign; 0 for divisor 0.
template <typename T>
__device__ __forceinline__ T kf_mod(T a, T b) {
    if (b == 0) return (T)0;
    if constexpr ((T)-1 < (T)1) {
        if (b == (T)-1) return (T)0;
        const T rest = (T)(a % b);
        return (T)(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    } else {
        return (T)(a % b);
    }
}

// The power by repeated squaring, which wraps. A negative exponent is a fault.
template <typename T>
__device__ __forceinline__ T kf_power(T base, T exponent, unsigned* fault) {
    if (kf_negative(exponent)) {
        kf_fault(fault, 1u);
        return (T)0;
    }
    T result = (T)1;
    while (exponent != 0) {
        if ((exponent & 1) != 0) result = kf_mul(result, base);
        base = kf_mul(base, base);
        exponent = (T)(exponent >> 1);
    }
    return result;
}

template <typename T>
__device__ __forceinline__ T kf_shl(T a, T b) {
    typedef typename kf_modular<T>::type U;
    if (kf_negative(b) || (U)b >= 8 * sizeof(T)) return (T)0;
    return (T)((U)a << (U)b);
}

template <typename T>
__device__ __forceinline__ T kf_shr(T a, T b) {
    typedef typename kf_modular<T>::type U;
    if (kf_negative(b) || (U)b >= 8 * sizeof(T)) return (T)(kf_negative(a) ? -1 : 0);
    return (T)(a >> b);
}

template <typename T>
__device__ __forceinline__ T kf_sign(T a) {
    return (T)((a != 0) - 2 * kf_negative(a));
}

// Converts a float: truncates, saturates, and maps NaN to 0. The limits are powers of two, which floats
// represent exactly.
template <typename T, typename F>
__device__ __forceinline__ T kf_saturate(F a) {
    constexpr bool SIGNED = (T)-1 < (T)1;
    constexpr int BITS = 8 * sizeof(T) - SIGNED;
    constexpr F END = (F)2 * (F)(1ull << (BITS - 1));
    constexpr T GREATEST = (T)(~0ull >> (64 - BITS));
    constexpr T LEAST = SIGNED ? (T)(~GREATEST) : (T)0;
    if (a != a) return (T)0;
    if (a >= END) return GREATEST;
    if (a <= (SIGNED ? -END : (F)0)) return LEAST;
    return (T)a;
}
