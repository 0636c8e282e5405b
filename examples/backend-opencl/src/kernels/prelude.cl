// Vectors have WIDTH elements: VECTOR(float) is float16, or a name of that kind.
#define PASTE(a, b) a##b
#define PASTE_VALUES(a, b) PASTE(a, b)
#define VECTOR(name) PASTE_VALUES(name, WIDTH)

// Halves: bfloat16 is the upper half of a float. "To odd" rounds towards zero and sets the last bit
// if anything was lost, so that rounding again to fewer bits is as good as rounding once.

inline float from_bfloat16(ushort x) { return as_float((uint)x << 16); }

inline ushort to_bfloat16(float x) {
    uint bits = as_uint(x);
    if (isnan(x)) return (ushort)((bits >> 16) | 0x40);
    return (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline VECTOR(float) from_bfloat16s(VECTOR(ushort) x) {
    return VECTOR(as_float)(VECTOR(convert_uint)(x) << 16);
}

inline VECTOR(ushort) to_bfloat16s(VECTOR(float) x) {
    VECTOR(uint) bits = VECTOR(as_uint)(x), upper = bits >> 16;
    VECTOR(uint) rounded = (bits + 0x7fff + (upper & 1)) >> 16;
    return VECTOR(convert_ushort)(select(rounded, upper | 0x40, isnan(x)));
}

inline float ulong_to_odd(ulong x) {
    if (x < (1UL << 24)) return (float)x;
    // The upper 32 bits or so, of which a float holds 24.
    int lost = 40 - (int)clz(x);
    uint kept = (uint)(x >> lost);
    if (x & ((1UL << lost) - 1)) kept |= 1;
    return ldexp((float)kept, lost);
}

inline float long_to_odd(long x) {
    float size = ulong_to_odd(x < 0 ? 0UL - (ulong)x : (ulong)x);
    return x < 0 ? -size : size;
}
