// Unsigned integers: the quotient and the remainder, 0 for divisor 0.
$DEVICE $T kf_floordiv_$T($T a, $T b) { return b == 0 ? ($T)0 : ($T)(a / b); }
$DEVICE $T kf_mod_$T($T a, $T b) { return b == 0 ? ($T)0 : ($T)(a % b); }
$DEVICE bool kf_negative_$T($T a) { return false; }
