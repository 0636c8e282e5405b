// Reductions. OP is one of the numbers below; T_x are the input's elements, T_r the output's.
//
// A lane is the elements that one result is made of. It is cut into stretches, so that there is work
// for all of a device: a unit of work is one stretch of one lane, or of neighbouring lanes ("across").
// ITEMS work-items share a unit: one where each of them has a core's vectors (a CPU), else a group.
#define SUM 1
#define MEAN 2
#define MAX 3
#define MIN 4
#define ARGMAX 5
#define ARGMIN 6
#define ALL 7
#define ANY 8

// The vectors that a work-item joins one after another, and those of neighbouring lanes.
#define BLOCK 256
#define ACROSS 4

typedef struct { long rank; long shape[DIMS]; long x[DIMS]; long r[DIMS]; } Kept;
typedef struct { long rank; long shape[DIMS]; long x[DIMS]; } Reduced;

// IDENTITY joined with a number is the number; NEUTRAL is an element that gives it.
#if OP <= MEAN
#define IDENTITY 0
#define NEUTRAL 0
#define JOIN(a, b) ((a) + (b))
#define JOINV JOIN
#elif OP <= ARGMIN
#define NEUTRAL IDENTITY
#if OP == MAX || OP == ARGMAX
#define BEFORE(a, b) ((b) > (a))
#else
#define BEFORE(a, b) ((b) < (a))
#endif
#if IS_FLOAT
#define BETTER(a, b) (BEFORE(a, b) || ((b) != (b) && (a) == (a)))
#define JOINV(a, b) select(a, b, BEFORE(a, b) | ((b) != (b)))
#else
#define BETTER BEFORE
#define JOINV(a, b) select(a, b, BEFORE(a, b))
#endif
#define JOIN(a, b) (BETTER(a, b) ? (b) : (a))
#else
#define NEUTRAL (OP == ALL)
#define IDENTITY (OP == ALL ? -1 : 0)
#if OP == ALL
#define JOIN(a, b) ((a) & (b))
#else
#define JOIN(a, b) ((a) | (b))
#endif
#define JOINV JOIN
#endif
#define HAS_AT (OP == ARGMAX || OP == ARGMIN)

// A part of a lane: a number, and a position: first that of the block with the number, in the end
// its own.
typedef struct {
    ACC value;
#if HAS_AT
    long at;
#endif
} Part;

typedef union { ACCV all; ACC each[WIDTH]; } Numbers;
typedef union { CV_x all; C_x each[WIDTH]; } Elements;

inline ACCV numbers(CV_x x) {
#ifdef TO_ACCV
    return TO_ACCV(x);
#else
    Elements from;
    Numbers to;
    from.all = x;
    for (int i = 0; i < WIDTH; i++) to.each[i] = TO_ACC(from.each[i]);
    return to.all;
#endif
}

// Up to WIDTH elements, and neutral ones in place of those that there aren't.
inline CV_x elements(global const T_x *p, long step, ulong left) {
    if (step == 1 && left >= WIDTH) return LOADV_x(p, 0);
    Elements some;
    for (int i = 0; i < WIDTH; i++) {
        some.each[i] = NEUTRAL;
        if ((ulong)i < left) some.each[i] = LOAD_x(p, i * step);
    }
    return some.all;
}

inline Part none(ulong at) {
    Part part;
    part.value = IDENTITY;
#if HAS_AT
    part.at = at;
#endif
    return part;
}

// Joins a number of a later position.
inline void join(Part *all, ACC value, ulong at) {
#if HAS_AT
    if (BETTER(all->value, value)) { all->value = value; all->at = at; }
#else
    all->value = JOIN(all->value, value);
#endif
}

inline long offset(ulong at, int dim, const long *shape, const long *steps) {
    long x = 0;
    for (; dim > 0; dim--) {
        ulong size = shape[dim], q = at / size;
        x += (long)(at - q * size) * steps[dim];
        at = q;
    }
    return x + (long)at * steps[0];
}

// The part of a lane's elements from begin to end. Sums are added in blocks, so that the error grows
// with the root of their number.
inline Part along(global const T_x *px, const Reduced *reduced, ulong begin, ulong end, uint me) {
    Part all = none(begin);
    int inner = reduced->rank - 1;
    ulong run = reduced->shape[inner];
    long step = reduced->x[inner];
    while (begin < end) {
        ulong row = begin / run, first = begin - row * run;
        ulong count = min(min(end - begin, run - first), (ulong)BLOCK * WIDTH * ITEMS);
        global const T_x *p = px + (long)first * step;
        if (inner > 0) p += offset(row, inner - 1, reduced->shape, reduced->x);
        Numbers block;
        block.all = (ACCV)(IDENTITY);
        for (ulong i = me * WIDTH; i < count; i += ITEMS * WIDTH) {
            block.all = JOINV(block.all, numbers(elements(p + (long)i * step, step, count - i)));
        }
        ACC value = block.each[0];
        for (int i = 1; i < WIDTH; i++) value = JOIN(value, block.each[i]);
        join(&all, value, begin);
        begin += count;
    }
    return all;
}

// The same of neighbouring lanes.
inline void across(global const T_x *px, const Reduced *reduced, ulong begin, ulong end, ulong lanes,
                   Part *all) {
    for (ulong i = 0; i < lanes; i++) all[i] = none(begin);
    while (begin < end) {
        ulong stop = min(begin + BLOCK, end);
        Numbers block[ACROSS];
        for (int v = 0; v < ACROSS; v++) block[v].all = (ACCV)(IDENTITY);
        for (ulong i = begin; i < stop; i++) {
            global const T_x *p = px + offset(i, reduced->rank - 1, reduced->shape, reduced->x);
            for (uint v = 0; v < ACROSS; v++) {
                if (v * WIDTH >= lanes) break;
                CV_x some = elements(p + v * WIDTH, 1, lanes - v * WIDTH);
                block[v].all = JOINV(block[v].all, numbers(some));
            }
        }
        for (ulong i = 0; i < lanes; i++) join(&all[i], block[i / WIDTH].each[i % WIDTH], begin);
        begin = stop;
    }
}

inline void finish(global T_r *pr, Part part, ulong count) {
#if OP == SUM
    V_r value = FROM_ACC(part.value);
#elif OP == MEAN
    V_r value = part.value / (ACC)count;
#elif OP == MAX || OP == MIN
    V_r value = part.value;
#elif HAS_AT
    V_r value = part.at;
#else
    V_r value = part.value != 0;
#endif
    STORE_r(pr, 0, value);
}

#if HAS_AT
// The first position of the part's value from its block on.
inline ulong find(global const T_x *px, const Reduced *reduced, Part part, ulong end, uint me) {
    for (ulong i = part.at + me; i < end; i += ITEMS) {
        C_x x = LOAD_x(px, offset(i, reduced->rank - 1, reduced->shape, reduced->x));
        if (x == part.value || (x != x && part.value != part.value)) return i;
    }
    return end;
}
#endif

// Modes: 0 is along, 1 across, 2 joins the parts of each lane. `lanes` are those of the units
// together, `inner` those of the innermost dimension in mode 1.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, global const T_x *px, long ax, global Part *parts, Kept kept,
         Reduced reduced, ulong lanes, ulong count, ulong stretches, ulong inner, int mode) {
    pr += ar;
    px += ax;
    ulong unit = get_global_id(0);
    int last = kept.rank - 1;
    if (mode == 2) {
        if (unit >= lanes) return;
        Part all = parts[unit * stretches];
        for (ulong i = 1; i < stretches; i++) {
            Part part = parts[unit * stretches + i];
#if HAS_AT
            join(&all, part.value, part.at);
#else
            join(&all, part.value, 0);
#endif
        }
        finish(pr + offset(unit, last, kept.shape, kept.r), all, count);
        return;
    }
#if ITEMS == 1
    if (mode == 1) {
        ulong blocks = (inner + ACROSS * WIDTH - 1) / (ACROSS * WIDTH);
        ulong first = unit % blocks * (ACROSS * WIDTH), rest = unit / blocks;
        ulong stretch = rest % stretches, lane = rest / stretches * inner + first;
        if (lane >= lanes) return;
        ulong own = min(inner - first, (ulong)ACROSS * WIDTH);
        ulong begin = count * stretch / stretches, end = count * (stretch + 1) / stretches;
        px += offset(lane, last, kept.shape, kept.x);
        Part all[ACROSS * WIDTH];
        across(px, &reduced, begin, end, own, all);
        for (ulong i = 0; i < own; i++) {
#if HAS_AT
            all[i].at = find(px + i, &reduced, all[i], end, 0);
#endif
            if (stretches > 1) parts[(lane + i) * stretches + stretch] = all[i];
            else finish(pr + offset(lane + i, last, kept.shape, kept.r), all[i], count);
        }
        return;
    }
    uint me = 0;
#else
    uint me = get_local_id(0);
    unit = get_group_id(0);
#endif
    ulong lane = unit / stretches, stretch = unit % stretches;
    if (lane >= lanes) return;
    ulong begin = count * stretch / stretches, end = count * (stretch + 1) / stretches;
    px += offset(lane, last, kept.shape, kept.x);
    Part all = along(px, &reduced, begin, end, me);
#if ITEMS > 1
    local Part shared[GROUP];
    shared[me] = all;
    for (uint half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_size) {
            Part other = shared[me + half_size];
#if HAS_AT
            // Of equal numbers the first.
            int before = !BETTER(other.value, all.value) && other.at < all.at;
            if (before || BETTER(all.value, other.value)) all = other;
#else
            join(&all, other.value, 0);
#endif
            shared[me] = all;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    all = shared[0];
#endif
#if HAS_AT
    ulong found = find(px, &reduced, all, end, me);
#if ITEMS > 1
    // Fewer elements than 2^32 of one block.
    local uint nearest;
    if (me == 0) nearest = UINT_MAX;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (found < end) atomic_min(&nearest, (uint)min(found - all.at, (ulong)UINT_MAX));
    barrier(CLK_LOCAL_MEM_FENCE);
    found = all.at + nearest;
#endif
    all.at = found;
#endif
    if (me > 0) return;
    if (stretches > 1) parts[unit] = all;
    else finish(pr + offset(lane, last, kept.shape, kept.r), all, count);
}
