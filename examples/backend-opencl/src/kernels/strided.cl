// Copies elements of a type T by strides, or fills them. The innermost dimension is the last.
typedef struct { long shape[MAX_RANK]; long to[MAX_RANK]; long from[MAX_RANK]; } Loop;

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T *to, long to_at, global const T *from, long from_at, Loop l, int rank, ulong count,
         int fills, ulong number) {
    for (INDEX i = get_global_id(0); i < count; i += get_global_size(0)) {
        INDEX rest = i;
        long a = to_at, b = from_at;
        for (int dim = rank - 1; dim >= 0; dim--) {
            INDEX size = (INDEX)l.shape[dim], q = rest / size;
            long p = (long)(rest - q * size);
            a += p * l.to[dim];
            b += p * l.from[dim];
            rest = q;
        }
        to[a] = fills ? (T)number : from[b];
    }
}
