// Integers. Sums, differences and products wrap; in C only unsigned integers may, so these are used.
$DEVICE $T kf_add_$T($T a, $T b) { return ($T)(($U)a + ($U)b); }
$DEVICE $T kf_sub_$T($T a, $T b) { return ($T)(($U)a - ($U)b); }
$DEVICE $T kf_mul_$T($T a, $T b) { return ($T)(($U)a * ($U)b); }

// The power by repeated squaring, which wraps. A negative exponent is a fault.
$DEVICE $T kf_power_$T($T base, $T exponent, $GLOBAL $U32* fault) {
    if (kf_negative_$T(exponent)) {
        kf_fault(fault, 1u);
        return ($T)0;
    }
    $T result = ($T)1;
    while (exponent != 0) {
        if ((exponent & 1) != 0) result = kf_mul_$T(result, base);
        base = kf_mul_$T(base, base);
        exponent = ($T)(exponent >> 1);
    }
    return result;
}

$DEVICE $T kf_shl_$T($T a, $T b) {
    if (kf_negative_$T(b) || ($U)b >= $BITS) return ($T)0;
    return ($T)(($U)a << ($U)b);
}

$DEVICE $T kf_shr_$T($T a, $T b) {
    if (kf_negative_$T(b) || ($U)b >= $BITS) return ($T)(kf_negative_$T(a) ? -1 : 0);
    return ($T)(a >> b);
}

$DEVICE $T kf_sign_$T($T a) { return ($T)((a != 0) - 2 * kf_negative_$T(a)); }
