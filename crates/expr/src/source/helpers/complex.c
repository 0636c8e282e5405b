// Complex numbers.
typedef struct {
    $F re;
    $F im;
} kf_$C;

$DEVICE $C kf_make_$C($F re, $F im) {
    const $C value = {re, im};
    return value;
}
$DEVICE $C kf_neg_$C($C a) { return kf_make_$C(-a.re, -a.im); }
$DEVICE $C kf_add_$C($C a, $C b) { return kf_make_$C(a.re + b.re, a.im + b.im); }
$DEVICE $C kf_sub_$C($C a, $C b) { return kf_make_$C(a.re - b.re, a.im - b.im); }
$DEVICE $C kf_mul_$C($C a, $C b) {
    return kf_make_$C(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
}
// The quotient by Smith's algorithm: scaled by the divisor's greater part, so that no square overflows.
$DEVICE $C kf_div_$C($C a, $C b) {
    const $F re = $fabs(b.re), im = $fabs(b.im);
    if (re == ($F)0 && im == ($F)0) return kf_make_$C(a.re / re, a.im / re);
    if (re >= im) {
        const $F ratio = b.im / b.re;
        const $F scale = ($F)1 / (b.re + b.im * ratio);
        return kf_make_$C((a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale);
    }
    const $F ratio = b.re / b.im;
    const $F scale = ($F)1 / (b.im + b.re * ratio);
    return kf_make_$C((a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale);
}
$DEVICE bool kf_equal_$C($C a, $C b) { return a.re == b.re && a.im == b.im; }
$DEVICE bool kf_nonzero_$C($C a) { return a.re != ($F)0 || a.im != ($F)0; }
$DEVICE bool kf_isnan_$C($C a) { return a.re != a.re || a.im != a.im; }
$DEVICE bool kf_isfinite_$C($C a) { return kf_isfinite_$F(a.re) && kf_isfinite_$F(a.im); }
$DEVICE $F kf_length_$C($C a) { return $hypot(a.re, a.im); }
$DEVICE $C kf_conj_$C($C a) { return kf_make_$C(a.re, -a.im); }
$DEVICE $F kf_nan_$C(void) { return $INFINITE - $INFINITE; }
$DEVICE bool kf_isinf_$C($F a) { return $fabs(a) == $INFINITE; }
// A product that is 0 if a factor is, even if the other is infinite (then with the product's sign) or NaN.
$DEVICE $F kf_product_$C($F a, $F b) {
    if (a == ($F)0 && !kf_isfinite_$F(b)) return b != b ? a : a * $copysign(($F)1, b);
    if (b == ($F)0 && !kf_isfinite_$F(a)) return a != a ? b : b * $copysign(($F)1, a);
    return a * b;
}
// z / abs(z): 0 for 0; the sign of one infinite part; NaN for two.
$DEVICE $C kf_signum_$C($C a) {
    const bool re = kf_isinf_$C(a.re), im = kf_isinf_$C(a.im);
    if (re && im) return kf_make_$C(kf_nan_$C(), kf_nan_$C());
    if (re) return kf_make_$C($copysign(($F)1, a.re), ($F)0);
    if (im) return kf_make_$C(($F)0, $copysign(($F)1, a.im));
    if (!kf_nonzero_$C(a)) return kf_make_$C(($F)0, ($F)0);
    const $F size = $fabs(a.re) > $fabs(a.im) ? $fabs(a.re) : $fabs(a.im);
    const $C unit = kf_make_$C(a.re / size, a.im / size);
    const $F length = kf_length_$C(unit);
    return kf_make_$C(unit.re / length, unit.im / length);
}
$DEVICE $C kf_polar_$C($F length, $F angle) {
    // The sine of 0 is 0, and so is its product with an infinite factor.
    return kf_make_$C(length * $cos(angle), angle == ($F)0 ? angle : length * $sin(angle));
}
$DEVICE $C kf_exp_$C($C a) {
    if (a.im == ($F)0) return kf_make_$C($exp(a.re), a.im);
    if (!kf_isfinite_$F(a.im) && kf_isinf_$C(a.re)) {
        // The modulus is infinite or 0, and the angle is undefined.
        if (a.re > ($F)0) return kf_make_$C(a.re, kf_nan_$C());
        return kf_make_$C(($F)0, $copysign(($F)0, a.im));
    }
    return kf_polar_$C($exp(a.re), a.im);
}
$DEVICE $C kf_log_$C($C a) {
    return kf_make_$C($log(kf_length_$C(a)), $atan2(a.im, a.re));
}
// The square root without cancellation: from half the sum of the modulus and the real part's absolute
// value.
$DEVICE $C kf_sqrt_$C($C a) {
    if (kf_isinf_$C(a.im)) return kf_make_$C($INFINITE, a.im);
    const $F root = $sqrt((kf_length_$C(a) + $fabs(a.re)) * ($F)0.5f);
    if (root == ($F)0) return kf_make_$C(root, a.im);
    const $F other = a.im / (root * ($F)2);
    if (a.re >= ($F)0) return kf_make_$C(root, other);
    return kf_make_$C($fabs(other), $copysign(root, a.im));
}
$DEVICE $C kf_rsqrt_$C($C a) {
    return kf_div_$C(kf_make_$C(($F)1, ($F)0), kf_sqrt_$C(a));
}
$DEVICE $C kf_sin_$C($C a) {
    if (kf_isinf_$C(a.im) && !kf_isfinite_$F(a.re)) return kf_make_$C(kf_nan_$C(), a.im);
    return kf_make_$C(kf_product_$C($sin(a.re), $cosh(a.im)),
                      kf_product_$C($cos(a.re), $sinh(a.im)));
}
$DEVICE $C kf_cos_$C($C a) {
    if (kf_isinf_$C(a.im) && !kf_isfinite_$F(a.re)) return kf_make_$C($INFINITE, kf_nan_$C());
    return kf_make_$C($cos(a.re) * $cosh(a.im), -kf_product_$C($sin(a.re), $sinh(a.im)));
}
// The hyperbolic tangent, from formulas that neither overflow nor cancel.
$DEVICE $C kf_tanh_$C($C a) {
    if (a.im == ($F)0) return kf_make_$C($tanh(a.re), a.im);
    if (!kf_isfinite_$F(a.im)) {
        if (kf_isinf_$C(a.re))
            return kf_make_$C($copysign(($F)1, a.re), $copysign(($F)0, a.im));
        return kf_make_$C(a.re == ($F)0 ? a.re : kf_nan_$C(), kf_nan_$C());
    }
    if ($fabs(a.re) > ($F)20) {
        const $F small = $exp(($F)-2 * $fabs(a.re));
        return kf_make_$C($copysign(($F)1, a.re), ($F)4 * $sin(a.im) * $cos(a.im) * small);
    }
    const $F wide = $sinh(a.re), turn = $cos(a.im);
    const $F below = wide * wide + turn * turn;
    return kf_make_$C(wide * $cosh(a.re) / below, $sin(a.im) * turn / below);
}
// 1 or 0 for an infinite part, with its sign; else NaN becomes 0.
$DEVICE $F kf_endless_part_$C($F a, bool endless) {
    if (endless) return $copysign(kf_isinf_$C(a) ? ($F)1 : ($F)0, a);
    return a != a ? $copysign(($F)0, a) : a;
}
// A product that is infinite if a factor is, as in C99's G.5.1.
$DEVICE $C kf_endless_product_$C($C a, $C b) {
    const $C plain = kf_mul_$C(a, b);
    const bool a_far = kf_isinf_$C(a.re) || kf_isinf_$C(a.im);
    const bool b_far = kf_isinf_$C(b.re) || kf_isinf_$C(b.im);
    if (!(plain.re != plain.re && plain.im != plain.im) || !(a_far || b_far)) return plain;
    const $C turned = kf_mul_$C(
        kf_make_$C(kf_endless_part_$C(a.re, a_far), kf_endless_part_$C(a.im, a_far)),
        kf_make_$C(kf_endless_part_$C(b.re, b_far), kf_endless_part_$C(b.im, b_far)));
    return kf_make_$C($INFINITE * turned.re, $INFINITE * turned.im);
}
// The power as in NumPy: products for integer exponents below 100, else from modulus and angle, or from
// the logarithm.
$DEVICE $C kf_pow_$C($C a, $C b) {
    const $C one = kf_make_$C(($F)1, ($F)0);
    if (!kf_nonzero_$C(b)) return one;
    if (!kf_nonzero_$C(a)) {
        if (b.re > ($F)0) return kf_make_$C(($F)0, ($F)0);
        return kf_make_$C(kf_nan_$C(), kf_nan_$C());
    }
    if (b.im == ($F)0 && $fabs(b.re) < ($F)100 && $trunc(b.re) == b.re) {
        $U32 left = ($U32)$fabs(b.re);
        $C square = a;
        for (; !(left & 1u); left >>= 1) square = kf_mul_$C(square, square);
        $C power = square;
        while (left >>= 1) {
            square = kf_mul_$C(square, square);
            if (left & 1u) power = kf_mul_$C(power, square);
        }
        return b.re < ($F)0 ? kf_div_$C(one, power) : power;
    }
    const $F length = kf_length_$C(a), angle = $atan2(a.im, a.re);
    const $F size = $pow(length, b.re) * $exp(-b.im * angle);
    const $F turn = b.im * $log(length) + b.re * angle;
    if (kf_isfinite_$F(size) && size > ($F)0 && kf_isfinite_$F(turn)) return kf_polar_$C(size, turn);
    return kf_exp_$C(kf_endless_product_$C(b, kf_log_$C(a)));
}
