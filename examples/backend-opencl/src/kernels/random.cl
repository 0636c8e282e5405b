// A block of the stream Philox4x32-10 for each work-item: four numbers, of float64 two.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, ulong count, ulong seed, ulong offset) {
    ulong block = get_global_id(0), i = block * NUMBERS;
    if (i >= count) return;
    uint4 words = philox(seed, offset + block);
    uint a = words.x, b = words.y, c = words.z, d = words.w;
#if NUMBERS == 2
    double u = (double)(((ulong)b << 32 | a) >> 11) * 0x1p-53;
    double v = (double)(((ulong)d << 32 | c) >> 11) * 0x1p-53;
#if NORMAL
    double radius = sqrt(-2.0 * log(1.0 - u)), angle = 6.283185307179586477 * v;
    double made[2] = {radius * cos(angle), radius * sin(angle)};
#else
    double made[2] = {u, v};
#endif
#elif NORMAL
    // Two pairs, computed in WIDE.
    WIDE r1 = sqrt((WIDE)-2 * log(((WIDE)a + 1) * (WIDE)0x1p-32f));
    WIDE r2 = sqrt((WIDE)-2 * log(((WIDE)c + 1) * (WIDE)0x1p-32f));
    WIDE t1 = TURN * ((WIDE)b * (WIDE)0x1p-32f);
    WIDE t2 = TURN * ((WIDE)d * (WIDE)0x1p-32f);
    float made[4] = {(float)(r1 * cos(t1)), (float)(r1 * sin(t1)), (float)(r2 * cos(t2)),
                     (float)(r2 * sin(t2))};
#else
    float unit = 1.0f / (float)(1u << BITS);
    float made[4] = {(float)(a >> (32 - BITS)) * unit, (float)(b >> (32 - BITS)) * unit,
                     (float)(c >> (32 - BITS)) * unit, (float)(d >> (32 - BITS)) * unit};
#endif
    for (int j = 0; j < NUMBERS && i + j < count; j++) STORE_r(pr, ar + i + j, made[j]);
}
