// Rounds float64 to float32 to odd: the last bit is set if any digit was cut off, so that rounding the
// result to a half is the same as rounding once.
$DEVICE float kf_odd(double value) {
    const float near = (float)value;
    if ((double)near == value || value != value) return near;
    $U32 bits = $ASUINT(near);
    if ($fabs64((double)near) > $fabs64(value)) bits -= 1u;
    return $ASFLOAT(bits | 1u);
}

$DEVICE $U16 kf_to_float16_float64(double value) { return kf_to_float16(kf_odd(value)); }
$DEVICE $U16 kf_to_bfloat16_float64(double value) { return kf_to_bfloat16(kf_odd(value)); }
