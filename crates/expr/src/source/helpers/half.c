// Halves, as their bits: widened exactly, and rounded to nearest, ties to even.
$DEVICE float kf_from_float16($U16 half_bits) {
    // The exponent's bias differs by 112.
    const $U32 bits = ($U32)(half_bits & 0x7fffu) << 13;
    const float scaled = $SCALEDHALF;
    const $U32 wide = bits >= 0x0f800000u ? bits | 0x7f800000u : $ASUINT(scaled);
    return $ASFLOAT(wide | ($U32)(half_bits & 0x8000u) << 16);
}

$DEVICE $U16 kf_to_float16(float value) {
    const $U32 bits = $ASUINT(value);
    const $U32 sign = bits >> 16 & 0x8000u;
    const $U32 size = bits & 0x7fffffffu;
    $U32 rounded;
    if (size >= 0x47800000u) {
        rounded = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (size < 0x38800000u) {
        // Subnormal halves: adding 0.5 shifts their last bit to the last bit of float32.
        rounded = $ASUINT($ASFLOAT(size) + 0.5f) - 0x3f000000u;
    } else {
        rounded = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    }
    return ($U16)(rounded | sign);
}

$DEVICE float kf_from_bfloat16($U16 half_bits) {
    return $ASFLOAT(($U32)half_bits << 16);
}

$DEVICE $U16 kf_to_bfloat16(float value) {
    const $U32 bits = $ASUINT(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return ($U16)(bits >> 16 | 0x40u);
    return ($U16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
