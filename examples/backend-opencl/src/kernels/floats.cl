// Floats whose type a kernel is told as a number, that of `Type`, and sums of a group.
#define ANY(name) global uchar *p##name, long a##name, int t##name
#define LOAD_ANY(name, i) load_any(p##name, a##name + (i), t##name)
#define STORE_ANY(name, i, v) store_any(p##name, a##name + (i), t##name, v)

inline ACC load_any(global const uchar *p, long i, int type) {
    switch (type) {
    case 9: return vload_half(i, (global const half *)p);
    case 10: return from_bfloat16(((global const ushort *)p)[i]);
#if HAS_FLOAT64
    case 12: return (ACC)((global const double *)p)[i];
#endif
    default: return ((global const float *)p)[i];
    }
}

inline void store_any(global uchar *p, long i, int type, ACC v) {
    switch (type) {
    case 9: vstore_half_rte((float)v, i, (global half *)p); break;
    case 10: ((global ushort *)p)[i] = to_bfloat16((float)v); break;
#if HAS_FLOAT64
    case 12: ((global double *)p)[i] = v; break;
#endif
    default: ((global float *)p)[i] = (float)v;
    }
}

// The sum of the numbers of the work-items in the caller's column; those of a group lie in rows of `columns`
// columns, a power of 2. All work-items of the group call it.
inline ACC sum_of_column(local ACC *shared_numbers, ACC own, uint columns) {
    uint me = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    shared_numbers[me] = own;
    for (uint half_size = GROUP / 2; half_size >= columns; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_size) shared_numbers[me] += shared_numbers[me + half_size];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return shared_numbers[me % columns];
}
