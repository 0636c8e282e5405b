// Floats. Whether the absolute value is at most the greatest finite number.
$DEVICE bool kf_isfinite_$F($F a) { return $fabs(a) <= $FINITE; }

$DEVICE $F kf_signum_$F($F a) {
    return a > ($F)0 ? ($F)1 : a < ($F)0 ? ($F)-1 : $fabs(a);
}

// The logistic function, from exp(-|a|), which can't overflow.
$DEVICE $F kf_sigmoid_$F($F a) {
    const $F part = $exp(-$fabs(a));
    return (a >= ($F)0 ? ($F)1 : part) / (($F)1 + part);
}

// The result is NaN if either operand is.
$DEVICE $F kf_least_$F($F a, $F b) {
    return a < b || a != a ? a : b;
}

$DEVICE $F kf_greatest_$F($F a, $F b) {
    return a > b || a != a ? a : b;
}

// The remainder, with the divisor's sign.
$DEVICE $F kf_remainder_$F($F a, $F b) {
    const $F rest = $fmod(a, b);
    if (rest == ($F)0) return $copysign(($F)0, b);
    return (rest < ($F)0) != (b < ($F)0) ? rest + b : rest;
}

// The quotient rounded down, so that a == quotient * b + remainder up to rounding.
$DEVICE $F kf_quotient_$F($F a, $F b) {
    if (b == ($F)0) return a / b;
    const $F rest = $fmod(a, b);
    $F quotient = (a - rest) / b;
    if (rest != ($F)0 && (rest < ($F)0) != (b < ($F)0)) quotient -= ($F)1;
    if (quotient == ($F)0) return $copysign(($F)0, a / b);
    const $F down = $floor(quotient);
    return quotient - down > ($F)0.5f ? down + ($F)1 : down;
}
