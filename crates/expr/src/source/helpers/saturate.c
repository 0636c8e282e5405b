// Converts a float to an integer: truncates, saturates, and maps NaN to 0. The limits are powers of two,
// which floats represent exactly.
$DEVICE $T kf_saturate_$T_$F($F a) {
    if (a != a) return ($T)0;
    if (a >= $END) return $GREATEST;
    if (a <= $START) return $LEAST;
    return ($T)a;
}
