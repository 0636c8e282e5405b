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

// Adds the positions' distances to at->x; false, and the fault word written, if one is out of range.
inline int find(At *at, const Indexed *indexed, PLACES, global int *fault, int tag) {
    for (int k = 0; k < POSITIONS; k++) {
        long given = PLACE(k)[at->p[k]], i = given < 0 ? given + indexed->size[k] : given;
        if (i < 0 || i >= indexed->size[k]) {
            if (atomic_cmpxchg(fault, 0, tag) == 0) {
                fault[1] = (int)indexed->dim[k];
                fault[2] = (int)(uint)(ulong)given;
                fault[3] = (int)(uint)((ulong)given >> 32);
            }
            return 0;
        }
        at->x += i * indexed->step[k];
    }
    return 1;
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pv, long av, global T_x *px, long ax, PLACES, Starts starts, Loop outer,
         Loop inner, Indexed indexed, ulong count, ulong inner_count, global int *fault, int tag) {
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
        if (!find(&at, &indexed, GIVEN, fault, tag)) continue;
        STORE_x(px, at.x, (C_x)sum_of(LOAD_x(px, at.x), LOAD_x(pv, at.values)));
    }
#else
    if (!find(&first, &indexed, GIVEN, fault, tag)) return;
#if MODE == READ
    STORE_x(pv, first.values, LOAD_x(px, first.x));
#else
    STORE_x(px, first.x, LOAD_x(pv, first.values));
#endif
#endif
}
