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
// The quotient by Smith's algorithm: scaled by the divisor's greater part, so that no square overflows
// or underflows, and both operands by 1/4 where the denominator could overflow. Divided by the
// denominator, since the reciprocals of the smallest numbers are infinite.
$DEVICE $C kf_div_$C($C a, $C b) {
    const $F re = $fabs(b.re), im = $fabs(b.im);
    if (re == ($F)0 && im == ($F)0) return kf_make_$C(a.re / re, a.im / re);
    if (re > $QUARTER || im > $QUARTER) {
        a = kf_make_$C(a.re * ($F)0.25f, a.im * ($F)0.25f);
        b = kf_make_$C(b.re * ($F)0.25f, b.im * ($F)0.25f);
    }
    if (re >= im) {
        const $F ratio = re == $INFINITE && im < re ? ($F)0 : b.im / b.re;
        const $F below = b.re + b.im * ratio;
        return kf_make_$C((a.re + a.im * ratio) / below, (a.im - a.re * ratio) / below);
    }
    const $F ratio = b.re / b.im;
    const $F below = b.im + b.re * ratio;
    return kf_make_$C((a.re * ratio + a.im) / below, (a.im * ratio - a.re) / below);
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
$DEVICE $C kf_exp_$C($C a) {
    if (a.im == ($F)0) return kf_make_$C($exp(a.re), a.im);
    if (!kf_isfinite_$F(a.im) && kf_isinf_$C(a.re)) {
        // The modulus is infinite or 0, and the angle is undefined.
        if (a.re > ($F)0) return kf_make_$C(a.re, kf_nan_$C());
        return kf_make_$C(($F)0, $copysign(($F)0, a.im));
    }
    // Two factors, so that a part overflows or underflows only with the product.
    const bool far = $fabs(a.re) > $EXPLIMIT;
    const $F first = $exp(far ? a.re * ($F)0.5f : a.re), second = far ? first : ($F)1;
    return kf_make_$C($cos(a.im) * first * second, $sin(a.im) * first * second);
}
// The rounded sum, and in `rest` its rounding error (Knuth, The Art of Computer Programming 2, 4.2.2).
$DEVICE $F kf_two_sum_$C($F a, $F b, $F *rest) {
    const $F sum = a + b, of_b = sum - a;
    *rest = (a - (sum - of_b)) + (b - of_b);
    return sum;
}
// high * high + low * low - 1, for numbers below 2. Squares and sums have their rounding errors beside
// them, since they may cancel to their last digits.
$DEVICE $F kf_square_minus_one_$C($F high, $F low) {
    const $F of_high = high * high, of_low = low * low;
    $F first, second, third, fourth;
    const $F beyond = kf_two_sum_$C(of_high, ($F)-1, &first);
    const $F squares = kf_two_sum_$C(beyond, of_low, &second);
    const $F errors =
        kf_two_sum_$C($fma(high, high, -of_high), $fma(low, low, -of_low), &third);
    const $F sum = kf_two_sum_$C(squares, errors, &fourth);
    return sum + (second + first + (fourth + third));
}
// The logarithm: near modulus 1 from the squared modulus minus 1, and scaled by a power of two where the
// modulus would overflow or has few digits.
$DEVICE $C kf_log_$C($C a) {
    const $F re = $fabs(a.re), im = $fabs(a.im);
    const $F high = re > im ? re : im, low = re > im ? im : re, angle = $atan2(a.im, a.re);
    if (high > ($F)0.5f && high < ($F)2)
        return kf_make_$C($log1p(kf_square_minus_one_$C(high, low)) * ($F)0.5f, angle);
    $F scale = ($F)1, apart = ($F)0;
    if (high > $QUARTER && high < $INFINITE) {
        scale = ($F)0.25f;
        apart = $LOG4;
    } else if (high < $NORMAL && high > ($F)0) {
        scale = $UP;
        apart = -$LOGUP;
    }
    return kf_make_$C($log($hypot(high * scale, low * scale)) + apart, angle);
}
// The square root without cancellation: from half the sum of the modulus and the real part's absolute
// value. Scaled by a power of four where they would overflow or lose digits.
$DEVICE $C kf_sqrt_$C($C a) {
    if (kf_isinf_$C(a.im)) return kf_make_$C($INFINITE, a.im);
    const $F size = $fabs(a.re) < $fabs(a.im) ? $fabs(a.im) : $fabs(a.re);
    const bool large = size > $QUARTER, small = size < $FEW;
    const $F up = large ? ($F)0.0625f : small ? $UP : ($F)1;
    const $F down = large ? ($F)4 : small ? $DOWN : ($F)1;
    const $C b = kf_make_$C(a.re * up, a.im * up);
    const $F root = $sqrt((kf_length_$C(b) + $fabs(b.re)) * ($F)0.5f);
    if (root == ($F)0) return kf_make_$C(root, a.im);
    const $F other = b.im / (root * ($F)2) * down, part = root * down;
    if (a.re >= ($F)0) return kf_make_$C(part, other);
    return kf_make_$C($fabs(other), $copysign(part, a.im));
}
$DEVICE $C kf_rsqrt_$C($C a) {
    return kf_div_$C(kf_make_$C(($F)1, ($F)0), kf_sqrt_$C(a));
}
// The hyperbolic sine and cosine of the imaginary part: the returned factor, which is 1 unless they
// could overflow, times `parts`.
$DEVICE $F kf_hyperbolic_$C($F a, $C *parts) {
    if ($fabs(a) > $EXPLIMIT) {
        const $F root = $exp($fabs(a) * ($F)0.5f), half_root = root * ($F)0.5f;
        *parts = kf_make_$C($copysign(half_root, a), half_root);
        return root;
    }
    *parts = kf_make_$C($sinh(a), $cosh(a));
    return ($F)1;
}
$DEVICE $C kf_sin_$C($C a) {
    if (kf_isinf_$C(a.im) && !kf_isfinite_$F(a.re)) return kf_make_$C(kf_nan_$C(), a.im);
    $C parts;
    const $F factor = kf_hyperbolic_$C(a.im, &parts);
    return kf_make_$C(kf_product_$C(kf_product_$C($sin(a.re), parts.im), factor),
                      kf_product_$C(kf_product_$C($cos(a.re), parts.re), factor));
}
$DEVICE $C kf_cos_$C($C a) {
    if (kf_isinf_$C(a.im) && !kf_isfinite_$F(a.re)) return kf_make_$C($INFINITE, kf_nan_$C());
    $C parts;
    const $F factor = kf_hyperbolic_$C(a.im, &parts);
    return kf_make_$C($cos(a.re) * parts.im * factor,
                      kf_product_$C(-kf_product_$C($sin(a.re), parts.re), factor));
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
    if (kf_isfinite_$F(size) && size >= $NORMAL && kf_isfinite_$F(turn))
        return kf_make_$C(size * $cos(turn), size * $sin(turn));
    return kf_exp_$C(kf_endless_product_$C(b, kf_log_$C(a)));
}
