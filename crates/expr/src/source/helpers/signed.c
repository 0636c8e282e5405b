// Signed integers: the quotient rounded down, 0 for divisor 0.
$DEVICE $T kf_floordiv_$T($T a, $T b) {
    if (b == 0) return ($T)0;
    if (b == ($T)-1) return ($T)(($U)0 - ($U)a);
    const $T quotient = ($T)(a / b), rest = ($T)(a % b);
    return ($T)(quotient - ($T)(rest != 0 && (rest < 0) != (b < 0)));
}

// The remainder, with the divisor's sign; 0 for divisor 0.
$DEVICE $T kf_mod_$T($T a, $T b) {
    if (b == 0 || b == ($T)-1) return ($T)0;
    const $T rest = ($T)(a % b);
    return ($T)(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

$DEVICE bool kf_negative_$T($T a) { return a < 0; }
