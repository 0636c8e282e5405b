// How a kernel finds its elements: alignment, division by multiplication, indices, faults.
$DEVICE bool kf_aligned($GLOBAL const void* data, $U32 bytes) {
    return ($ADDRESS)data % bytes == 0;
}

// Quotients by a size known at the launch: a multiplication and a shift. `magic` has 32 bits for
// numbers below 2^31, 64 bits for those below 2^63 (wide).
$DEVICE $U64 kf_divide($U64 number, $U64 magic, $U64 shift, bool wide) {
    if (wide) return ($MULHI64(number, magic) + number) >> shift;
    const $U32 narrow = ($U32)number;
    return ($MULHI32(narrow, ($U32)magic) + narrow) >> shift;
}

// The highest code is kept, so that the fault word is the same in every run.
$DEVICE void kf_fault($GLOBAL $U32* fault, $U32 code) {
    $ATOMICMAX(fault, code);
}

// The index along one dimension, where negative ones count from the end; negative if it is out of range.
$DEVICE $I64 kf_locate($I64 index, $I64 size) {
    const $I64 place = index < 0 ? index + size : index;
    return place < size ? place : -1;
}
