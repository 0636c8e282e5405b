// Indexing. A loop over `values` (what is read from or written to `x` at positions), whose dimensions
// step through them, through `x` outside of the indexed dimensions, and through each list of positions.
#define READ 0
#define WRITE 1
#define ADD 2

typedef struct { long shape[RANK]; long values[RANK]; long x[RANK]; long p[POSITIONS][RANK]; } Loop;
typedef struct { long size[POSITIONS]; long step[POSITIONS]; long dim[POSITIONS]; } Indexed;

// Where a loop's element is: among the values, in x, and in each list of positions.
typedef struct { long values; long x; long p[POSITIONS]; } At;

inline void locate(ulong rest, const Loop *l, At *at) {
    for (int dim = RANK - 1; dim >= 0; dim--) {
        ulong size = l->shape[dim], q = rest / size;
        long i = rest - q * size;
        rest = q;
        at->values += i * l->values[dim];
        at->x += i * l->x[dim];
        for (int k = 0; k < POSITIONS; k++) at->p[k] += i * l->p[k][dim];
    }
}

// Adds the positions' distances to at->x; false, and the call's record written, if one is out of range.
inline int find(At *at, const Indexed *indexed, PLACES, global int *records, int call) {
    for (int k = 0; k < POSITIONS; k++) {
        long given = PLACE(k)[at->p[k]], i = given < 0 ? given + indexed->size[k] : given;
        if (i < 0 || i >= indexed->size[k]) {
            global int *record = records + 4 * call;
            if (atomic_cmpxchg(record, 0, 1) == 0) {
                record[1] = (int)indexed->dim[k];
                record[2] = (int)(uint)(ulong)given;
                record[3] = (int)(uint)((ulong)given >> 32);
            }
            return 0;
        }
        at->x += i * indexed->step[k];
    }
    return 1;
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pv, long av, global T_x *px, long ax, PLACES, Starts starts, Loop outer,
         Loop inner, Indexed indexed, ulong count, ulong inner_count, global int *records, int call) {
    ulong me = get_global_id(0);
    if (me >= count) return;
    At first = {av, ax, {0}};
    for (int k = 0; k < POSITIONS; k++) first.p[k] = starts.at[k];
    locate(me, &outer, &first);
#if MODE == ADD
    // One work-item adds all values for the same elements, in order.
    for (ulong i = 0; i < inner_count; i++) {
        At at = first;
        locate(i, &inner, &at);
        if (!find(&at, &indexed, GIVEN, records, call)) continue;
        STORE_x(px, at.x, (C_x)sum_of(LOAD_x(px, at.x), LOAD_x(pv, at.values)));
    }
#else
    if (!find(&first, &indexed, GIVEN, records, call)) return;
#if MODE == READ
    STORE_x(pv, first.values, LOAD_x(px, first.x));
#else
    STORE_x(px, first.x, LOAD_x(pv, first.values));
#endif
#endif
}
