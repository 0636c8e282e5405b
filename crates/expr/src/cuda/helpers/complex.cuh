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
// Smith's way: scaled by the divisor's greater part, so that no square overflows.
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
__device__ __forceinline__ kf_complex<F> kf_polar(F length, F angle) {
    // The sine of 0 is 0 and stays so, however long.
    return {length * kf_cos(angle), angle == (F)0 ? angle : length * kf_sin(angle)};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_exp(kf_complex<F> a) {
    return kf_polar(kf_exp(a.re), a.im);
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_log(kf_complex<F> a) {
    return {kf_log(kf_length(a)), kf_atan2(a.im, a.re)};
}
// Without cancellation: the root of half of the length plus the real part's size.
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_sqrt(kf_complex<F> a) {
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
    return {kf_sin(a.re) * kf_cosh(a.im), kf_cos(a.re) * kf_sinh(a.im)};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_cos(kf_complex<F> a) {
    return {kf_cos(a.re) * kf_cosh(a.im), -(kf_sin(a.re) * kf_sinh(a.im))};
}
// Of tanh of the real part and the angle, which neither overflow nor cancel.
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_tanh(kf_complex<F> a) {
    if (kf_fabs(a.re) > (F)20) {
        const F small = kf_exp((F)-2 * kf_fabs(a.re));
        return {kf_copysign((F)1, a.re), (F)4 * kf_sin(a.im) * kf_cos(a.im) * small};
    }
    const F wide = kf_sinh(a.re), turn = kf_cos(a.im);
    const F below = wide * wide + turn * turn;
    return {wide * kf_cosh(a.re) / below, kf_sin(a.im) * turn / below};
}
template <typename F>
__device__ __forceinline__ kf_complex<F> kf_pow(kf_complex<F> a, kf_complex<F> b) {
    if (!kf_nonzero(b)) return {(F)1, (F)0};
    if (!kf_nonzero(a)) return {(F)0, (F)0};
    const F length = kf_length(a), angle = kf_atan2(a.im, a.re);
    const F size = kf_pow(length, b.re) * kf_exp(-b.im * angle);
    return kf_polar(size, b.im * kf_log(length) + b.re * angle);
}
