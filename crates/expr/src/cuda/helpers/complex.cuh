// Complex numbers.
template <typename F>
struct kf_complex {
    F re;
    F im;
};

template <typename F>
__device__ __forceinline__ kf_complex<F> operator-(kf_complex<F> a) {
    return {-a.re, -a.im};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> operator+(kf_complex<F> a, kf_complex<F> b) {
    return {a.re + b.re, a.im + b.im};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> operator-(kf_complex<F> a, kf_complex<F> b) {
    return {a.re - b.re, a.im - b.im};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> operator*(kf_complex<F> a, kf_complex<F> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// The quotient by Smith's algorithm: scaled by the divisor's greater part, so that no square overflows.
template <typename F>
__device__ __forceinline__ kf_complex<F> operator/(kf_complex<F> a, kf_complex<F> b) {
    const F re = kf_fabs(b.re), im = kf_fabs(b.im);
    if (re == (F)0 && im == (F)0) return {a.re / re, a.im / re};
    if (re >= im) {
        const F ratio = b.im / b.re;
        const F scale = (F)1 / (b.re + b.im * ratio);
        return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
    }
    const F ratio = b.re / b.im;
    const F scale = (F)1 / (b.im + b.re * ratio);
    return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
template <typename F>
__device__ __forceinline__ bool operator==(kf_complex<F> a, kf_complex<F> b) {
    return a.re == b.re && a.im == b.im;
}
template <typename F>
__device__ __forceinline__ bool operator!=(kf_complex<F> a, kf_complex<F> b) {
    return a.re != b.re || a.im != b.im;
}

__device__ __forceinline__ float kf_hypot(float a, float b) { return hypotf(a, b); }
__device__ __forceinline__ double kf_hypot(double a, double b) { return hypot(a, b); }
__device__ __forceinline__ float kf_atan2(float a, float b) { return atan2f(a, b); }
__device__ __forceinline__ double kf_atan2(double a, double b) { return atan2(a, b); }
__device__ __forceinline__ float kf_sinh(float a) { return sinhf(a); }
__device__ __forceinline__ double kf_sinh(double a) { return sinh(a); }
__device__ __forceinline__ float kf_cosh(float a) { return coshf(a); }
__device__ __forceinline__ double kf_cosh(double a) { return cosh(a); }

template <typename F>
__device__ __forceinline__ bool kf_nonzero(kf_complex<F> a) {
    return a.re != (F)0 || a.im != (F)0;
}
template <typename F>
__device__ __forceinline__ bool kf_isnan(kf_complex<F> a) {
    return a.re != a.re || a.im != a.im;
}
template <typename F>
__device__ __forceinline__ bool kf_isfinite(kf_complex<F> a) {
    return kf_isfinite(a.re) && kf_isfinite(a.im);
}
template <typename F>
__device__ __forceinline__ F kf_length(kf_complex<F> a) {
    return kf_hypot(a.re, a.im);
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_conj(kf_complex<F> a) {
    return {a.re, -a.im};
}
__device__ __forceinline__ float kf_infinity(float) { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ double kf_infinity(double) {
    return __longlong_as_double(0x7ff0000000000000ll);
}
template <typename F>
__device__ __forceinline__ F kf_nan(F a) {
    return kf_infinity(a) - kf_infinity(a);
}
template <typename F>
__device__ __forceinline__ bool kf_isinf(F a) {
    return kf_fabs(a) == kf_infinity(a);
}
// A product that is 0 if a factor is, even if the other is infinite (then with the product's sign) or NaN.
template <typename F>
__device__ __forceinline__ F kf_product(F a, F b) {
    if (a == (F)0 && !kf_isfinite(b)) return b != b ? a : a * kf_copysign((F)1, b);
    if (b == (F)0 && !kf_isfinite(a)) return a != a ? b : b * kf_copysign((F)1, a);
    return a * b;
}
// z / abs(z): 0 for 0; the sign of one infinite part; NaN for two.
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_signum(kf_complex<F> a) {
    const bool re = kf_isinf(a.re), im = kf_isinf(a.im);
    if (re && im) return {kf_nan(a.re), kf_nan(a.re)};
    if (re) return {kf_copysign((F)1, a.re), (F)0};
    if (im) return {(F)0, kf_copysign((F)1, a.im)};
    const F size = kf_fabs(a.re) > kf_fabs(a.im) ? kf_fabs(a.re) : kf_fabs(a.im);
    if (!kf_nonzero(a)) return {(F)0, (F)0};
    const kf_complex<F> unit = {a.re / size, a.im / size};
    const F length = kf_length(unit);
    return {unit.re / length, unit.im / length};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_polar(F length, F angle) {
    // The sine of 0 is 0, and so is its product with an infinite factor.
    return {length * kf_cos(angle), angle == (F)0 ? angle : length * kf_sin(angle)};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_exp(kf_complex<F> a) {
    if (a.im == (F)0) return {kf_exp(a.re), a.im};
    if (!kf_isfinite(a.im) && kf_isinf(a.re)) {
        // The modulus is infinite or 0, and the angle is undefined.
        if (a.re > (F)0) return {a.re, kf_nan(a.re)};
        return {(F)0, kf_copysign((F)0, a.im)};
    }
    return kf_polar(kf_exp(a.re), a.im);
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_log(kf_complex<F> a) {
    return {kf_log(kf_length(a)), kf_atan2(a.im, a.re)};
}
// The square root without cancellation: from half the sum of the modulus and the real part's absolute
// value.
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_sqrt(kf_complex<F> a) {
    if (kf_isinf(a.im)) return {kf_infinity(a.re), a.im};
    const F root = kf_sqrt((kf_length(a) + kf_fabs(a.re)) * (F)0.5);
    if (root == (F)0) return {root, a.im};
    const F other = a.im / (root * (F)2);
    if (a.re >= (F)0) return {root, other};
    return {kf_fabs(other), kf_copysign(root, a.im)};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_rsqrt(kf_complex<F> a) {
    return kf_complex<F>{(F)1, (F)0} / kf_sqrt(a);
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_sin(kf_complex<F> a) {
    if (kf_isinf(a.im) && !kf_isfinite(a.re)) return {kf_nan(a.re), a.im};
    return {kf_product(kf_sin(a.re), kf_cosh(a.im)), kf_product(kf_cos(a.re), kf_sinh(a.im))};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_cos(kf_complex<F> a) {
    if (kf_isinf(a.im) && !kf_isfinite(a.re)) return {kf_infinity(a.re), kf_nan(a.re)};
    return {kf_cos(a.re) * kf_cosh(a.im), -kf_product(kf_sin(a.re), kf_sinh(a.im))};
}
// The hyperbolic tangent, from formulas that neither overflow nor cancel.
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_tanh(kf_complex<F> a) {
    if (a.im == (F)0) return {kf_tanh(a.re), a.im};
    if (!kf_isfinite(a.im)) {
        if (kf_isinf(a.re)) return {kf_copysign((F)1, a.re), kf_copysign((F)0, a.im)};
        return {a.re == (F)0 ? a.re : kf_nan(a.re), kf_nan(a.re)};
    }
    if (kf_fabs(a.re) > (F)20) {
        const F small = kf_exp((F)-2 * kf_fabs(a.re));
        return {kf_copysign((F)1, a.re), (F)4 * kf_sin(a.im) * kf_cos(a.im) * small};
    }
    const F wide = kf_sinh(a.re), turn = kf_cos(a.im);
    const F below = wide * wide + turn * turn;
    return {wide * kf_cosh(a.re) / below, kf_sin(a.im) * turn / below};
}
// A product that is infinite if a factor is, as in C99's G.5.1.
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_endless_product(kf_complex<F> a, kf_complex<F> b) {
    const kf_complex<F> plain = a * b;
    const bool a_far = kf_isinf(a.re) || kf_isinf(a.im), b_far = kf_isinf(b.re) || kf_isinf(b.im);
    if (!(plain.re != plain.re && plain.im != plain.im) || !(a_far || b_far)) return plain;
    const F zero = (F)0, one = (F)1, far = kf_infinity(one);
    if (a_far) a = {kf_copysign(kf_isinf(a.re) ? one : zero, a.re),
                    kf_copysign(kf_isinf(a.im) ? one : zero, a.im)};
    else a = {a.re != a.re ? kf_copysign(zero, a.re) : a.re,
              a.im != a.im ? kf_copysign(zero, a.im) : a.im};
    if (b_far) b = {kf_copysign(kf_isinf(b.re) ? one : zero, b.re),
                    kf_copysign(kf_isinf(b.im) ? one : zero, b.im)};
    else b = {b.re != b.re ? kf_copysign(zero, b.re) : b.re,
              b.im != b.im ? kf_copysign(zero, b.im) : b.im};
    const kf_complex<F> turned = a * b;
    return {far * turned.re, far * turned.im};
}
// The power as in NumPy: products for integer exponents below 100, else from modulus and angle, or from
// the logarithm.
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_pow(kf_complex<F> a, kf_complex<F> b) {
    if (!kf_nonzero(b)) return {(F)1, (F)0};
    if (!kf_nonzero(a)) {
        if (b.re > (F)0) return {(F)0, (F)0};
        return {kf_nan(a.re), kf_nan(a.re)};
    }
    if (b.im == (F)0 && kf_fabs(b.re) < (F)100 && kf_trunc(b.re) == b.re) {
        unsigned left = (unsigned)kf_fabs(b.re);
        kf_complex<F> square = a;
        for (; !(left & 1u); left >>= 1) square = square * square;
        kf_complex<F> power = square;
        while (left >>= 1) {
            square = square * square;
            if (left & 1u) power = power * square;
        }
        return b.re < (F)0 ? kf_complex<F>{(F)1, (F)0} / power : power;
    }
    const F length = kf_length(a), angle = kf_atan2(a.im, a.re);
    const F size = kf_pow(length, b.re) * kf_exp(-b.im * angle);
    const F turn = b.im * kf_log(length) + b.re * angle;
    if (kf_isfinite(size) && size > (F)0 && kf_isfinite(turn)) return kf_polar(size, turn);
    return kf_exp(kf_endless_product(b, kf_log(a)));
}
