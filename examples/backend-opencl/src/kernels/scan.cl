// Cumulative sums and products along lanes. OP is one of the numbers below, and ACC what accumulates:
// for integers ulong, which wraps.
#define SUM 1
#define PROD 2

// The consecutive elements of a work-item in a tile of its group.
#define CHUNK 16

typedef struct { long shape[KEPT]; long x[KEPT]; long r[KEPT]; } Kept;

// The type of a combined result. Its size is at most 16 bytes.
#if OP == PROD && ACC_IS_FLOAT && FORM != 0
// A product as a fraction and a power of 2: a part of a lane may overflow where the lane doesn't.
typedef struct { ACC fraction; long exponent; } Part;

inline Part scaled(ACC value, long exponent) {
    int own;
    Part part;
    part.fraction = frexp(value, &own);
    part.exponent = exponent + own;
    return part;
}
inline Part of(ACC x) { return scaled(x, 0); }
inline Part join(Part a, Part b) {
    return scaled(a.fraction * b.fraction, a.exponent + b.exponent);
}
inline ACC value_of(Part a) {
    return ldexp(a.fraction, (int)clamp(a.exponent, (long)-8192, (long)8192));
}
#else
typedef struct { ACC value; } Part;

inline Part of(ACC x) { Part part; part.value = x; return part; }
inline Part join(Part a, Part b) {
#if OP == SUM
    a.value += b.value;
#else
    a.value *= b.value;
#endif
    return a;
}
inline ACC value_of(Part a) { return a.value; }
#endif

inline Part load(global const T_x *px, long at) { C_x x = LOAD_x(px, at); return of(TO_ACC(x)); }

inline void store(global T_r *pr, long at, Part part) {
    ACC found = value_of(part);
    V_r value = FROM_ACC(found);
    STORE_r(pr, at, value);
}

inline long offsets(ulong lane, const Kept *kept, long *r) {
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

#if FORM == 0
// One work-item for each lane.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, global const T_x *px, long ax, Kept kept, ulong lanes,
         ulong count, long step_x, long step_r) {
    ulong lane = get_global_id(0);
    if (lane >= lanes) return;
    ax += offsets(lane, &kept, &ar);
    Part all = load(px, ax);
    store(pr, ar, all);
    for (ulong i = 1; i < count; i++) {
        all = join(all, load(px, ax + (long)i * step_x));
        store(pr, ar + (long)i * step_r, all);
    }
}
#elif FORM == 1
// Several groups for each lane: what each one's stretch of it combines to, to `parts`. No stretch has
// fewer elements than a group has work-items.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global Part *parts, global const T_x *px, long ax, Kept kept, ulong stretches,
         ulong count, long step_x) {
    local Part shared_parts[GROUP];
    ulong lane = get_group_id(0) / stretches, stretch = get_group_id(0) % stretches;
    uint me = get_local_id(0);
    long r = 0;
    ax += offsets(lane, &kept, &r);
    ulong begin = count * stretch / stretches, end = count * (stretch + 1) / stretches;
    Part own = load(px, ax + (long)(begin + me) * step_x);
    for (ulong i = begin + me + GROUP; i < end; i += GROUP) {
        own = join(own, load(px, ax + (long)i * step_x));
    }
    shared_parts[me] = own;
    for (uint half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_size) {
            shared_parts[me] = join(shared_parts[me], shared_parts[me + half_size]);
        }
    }
    if (me == 0) parts[get_group_id(0)] = shared_parts[0];
}
#elif FORM == 2
// One work-item for each lane replaces the part of each stretch by that of all stretches before it.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global Part *parts, ulong stretches, ulong lanes) {
    ulong lane = get_global_id(0);
    if (lane >= lanes) return;
    parts += lane * stretches;
    Part all = parts[0];
    for (ulong i = 1; i < stretches; i++) {
        Part own = parts[i];
        parts[i] = all;
        all = join(all, own);
    }
}
#else
// Several groups for each lane, or one: each scans its stretch of it tile by tile.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, global const T_x *px, long ax, Kept kept,
         global const Part *parts, ulong stretches, ulong count, long step_x, long step_r) {
    local Part totals[GROUP];
    ulong lane = get_group_id(0) / stretches, stretch = get_group_id(0) % stretches;
    uint me = get_local_id(0);
    ax += offsets(lane, &kept, &ar);
    ulong begin = count * stretch / stretches, end = count * (stretch + 1) / stretches;
    // The result of all elements before the tile; the lane's first tile has none.
    int has_carry = stretch > 0;
    Part carry = of(0);
    if (has_carry) carry = parts[get_group_id(0)];
    for (ulong tile = begin; tile < end; tile += GROUP * CHUNK) {
        ulong first = tile + me * CHUNK, behind = min(first + CHUNK, end);
        int has_own = first < end;
        Part own = of(0);
        if (has_own) {
            own = load(px, ax + (long)first * step_x);
            for (ulong i = first + 1; i < behind; i++) {
                own = join(own, load(px, ax + (long)i * step_x));
            }
        }
        totals[me] = own;
        // Steps that double the distance (W. Hillis and G. Steele, 1986).
        for (uint distance = 1; distance < GROUP; distance *= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (has_own && me >= distance) own = join(totals[me - distance], own);
            barrier(CLK_LOCAL_MEM_FENCE);
            totals[me] = own;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (has_own) {
            int has_before = has_carry || me > 0;
            Part before = carry;
            if (me > 0) before = has_carry ? join(carry, totals[me - 1]) : totals[me - 1];
            for (ulong i = first; i < behind; i++) {
                Part next = load(px, ax + (long)i * step_x);
                before = has_before ? join(before, next) : next;
                has_before = 1;
                store(pr, ar + (long)i * step_r, before);
            }
        }
        ulong used = min((end - tile + CHUNK - 1) / CHUNK, (ulong)GROUP);
        Part all = totals[used - 1];
        barrier(CLK_LOCAL_MEM_FENCE);
        carry = has_carry ? join(carry, all) : all;
        has_carry = 1;
    }
}
#endif
