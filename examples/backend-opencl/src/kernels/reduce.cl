// Reductions. OP is one of the numbers below; T_x are the input's elements, T_r the output's, and
// C_r is what sums are computed in.
#define SUM 1
#define MEAN 2
#define MAX 3
#define MIN 4
#define ARGMAX 5
#define ARGMIN 6
#define ALL 7
#define ANY 8

typedef struct { long shape[KEPT]; long x[KEPT]; long r[KEPT]; } Kept;
typedef struct { long shape[REDUCED]; long x[REDUCED]; } Reduced;

// A part of a lane: a number, and for extremes the position, -1 without elements. Its size is at
// most 16 bytes.
#if OP <= MEAN
typedef struct { ACC value; } Part;

inline Part none(void) { Part part; part.value = 0; return part; }
inline Part of(C_x x, long at) { Part part; part.value = TO_ACC(x); return part; }
inline Part join(Part a, Part b) { a.value = (ACC)((ADD)a.value + (ADD)b.value); return a; }
#elif OP <= ARGMIN
typedef struct { C_x value; long at; } Part;

inline Part none(void) { Part part; part.value = 0; part.at = -1; return part; }
inline Part of(C_x x, long at) { Part part; part.value = x; part.at = at; return part; }
inline Part join(Part a, Part b) {
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    Part first = a.at < b.at ? a : b, second = a.at < b.at ? b : a;
#if IS_FLOAT
    if (isnan(first.value)) return first;
    if (isnan(second.value)) return second;
#endif
#if OP == MAX || OP == ARGMAX
    return second.value > first.value ? second : first;
#else
    return second.value < first.value ? second : first;
#endif
}
#else
typedef struct { int value; } Part;

inline Part none(void) { Part part; part.value = OP == ALL; return part; }
inline Part of(C_x x, long at) { Part part; part.value = x != 0; return part; }
inline Part join(Part a, Part b) {
    if (OP == ALL) a.value &= b.value; else a.value |= b.value;
    return a;
}
#endif

inline long kept_offsets(ulong lane, const Kept *kept, long *r) {
    long x = 0;
    for (int dim = KEPT - 1; dim >= 0; dim--) {
        ulong size = kept->shape[dim], q = lane / size;
        long p = lane - q * size;
        lane = q;
        x += p * kept->x[dim];
        *r += p * kept->r[dim];
    }
    return x;
}

inline long reduced_offset(ulong at, const Reduced *reduced) {
#if REDUCED == 1
    return (long)at * reduced->x[0];
#else
    long x = 0;
    for (int dim = REDUCED - 1; dim >= 0; dim--) {
        ulong size = reduced->shape[dim], q = at / size;
        x += (long)(at - q * size) * reduced->x[dim];
        at = q;
    }
    return x;
#endif
}

// The part of elements begin, begin + step, ... before end. Sums are added in blocks, so that the
// error grows with the root of their number.
inline Part along(global const T_x *px, const Reduced *reduced, ulong begin, ulong end, ulong step) {
    Part all = none();
    while (begin < end) {
        Part block = none();
        for (int i = 0; i < 256 && begin < end; i++, begin += step) {
            long at = reduced_offset(begin, reduced);
            block = join(block, of(LOAD_x(px, at), (long)begin));
        }
        all = join(all, block);
    }
    return all;
}

inline void finish(global T_r *pr, long at, Part part, ulong count) {
#if OP == SUM
    V_r value = FROM_ACC(part.value);
#elif OP == MEAN
    V_r value = part.value / (ACC)count;
#elif OP == MAX || OP == MIN
    V_r value = part.value;
#elif OP == ARGMAX || OP == ARGMIN
    V_r value = part.at;
#else
    V_r value = part.value;
#endif
    STORE_r(pr, at, value);
}

#if FORM == 0
// One work-item for each lane.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, global const T_x *px, long ax, Kept kept, Reduced reduced,
         ulong lanes, ulong count) {
    ulong lane = get_global_id(0);
    if (lane >= lanes) return;
    long r = ar;
    px += ax + kept_offsets(lane, &kept, &r);
    finish(pr, r, along(px, &reduced, 0, count, 1), count);
}
#elif FORM == 1
// Several groups for each lane, each for one stretch of it; a part of each group to `parts`.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global Part *parts, global const T_x *px, long ax, Kept kept, Reduced reduced,
         ulong stretches, ulong count) {
    local Part shared_parts[GROUP];
    ulong lane = get_group_id(0) / stretches, stretch = get_group_id(0) % stretches;
    uint me = get_local_id(0);
    long r = 0;
    px += ax + kept_offsets(lane, &kept, &r);
    ulong begin = count * stretch / stretches, end = count * (stretch + 1) / stretches;
    shared_parts[me] = along(px, &reduced, begin + me, end, GROUP);
    for (uint half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_size) {
            shared_parts[me] = join(shared_parts[me], shared_parts[me + half_size]);
        }
    }
    if (me == 0) parts[get_group_id(0)] = shared_parts[0];
}
#else
// One work-item for each lane joins its parts.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, global const Part *parts, Kept kept, ulong stretches,
         ulong lanes, ulong count) {
    ulong lane = get_global_id(0);
    if (lane >= lanes) return;
    long r = ar;
    kept_offsets(lane, &kept, &r);
    Part all = none();
    for (ulong i = 0; i < stretches; i++) all = join(all, parts[lane * stretches + i]);
    finish(pr, r, all, count);
}
#endif
