// Softmax and its logarithm along lanes, computed in C_r. Units of work are those of reduce.cl.
#define ACROSS 4

// The part of the work that a launch does: a unit's part, the results of all parts, both for neighbouring lanes.
#define COUNT 1
#define WRITE 2
#define LANES 4

typedef struct { long rank; long shape[DIMS]; long x[DIMS]; long r[DIMS]; } Kept;

inline void locate(ulong lane, const Kept *kept, long *x, long *r) {
    for (int dim = kept->rank - 1; dim >= 0; dim--) {
        ulong size = kept->shape[dim], q = lane / size;
        long i = lane - q * size;
        lane = q;
        *x += i * kept->x[dim];
        *r += i * kept->r[dim];
    }
}

// The greatest number of a part, and the sum of the exponentials of all numbers'
// distances from it.
typedef struct { C_r most; C_r sum; } Part;

typedef union { CV_r all; C_r each[WIDTH]; } Numbers;

// The greatest number, or NaN if there is one.
#define GREATEST(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))
#define GREATESTV(a, b) select(a, b, ((b) > (a)) | ((b) != (b)))

// Up to WIDTH numbers, and the least in place of those that there aren't.
inline CV_r numbers(global const T_x *p, long step, ulong left) {
    if (step == 1 && left >= WIDTH) return CONVERTV(LOADV_x(p, 0));
    Numbers some;
    for (int i = 0; i < WIDTH; i++) {
        some.each[i] = -INFINITY;
        if ((ulong)i < left) some.each[i] = (C_r)LOAD_x(p, i * step);
    }
    return some.all;
}

inline void put(global T_r *p, long step, ulong left, CV_r x, CV_r most, CV_r sum) {
    Numbers some;
    some.all = LOGARITHM ? x - most - sum : exp(x - most) / sum;
    if (step == 1 && left >= WIDTH) {
        STOREV_r(p, 0, some.all);
        return;
    }
    for (int i = 0; i < WIDTH && (ulong)i < left; i++) STORE_r(p, i * step, some.each[i]);
}

// Joins `count` parts. Without a finite number there is no sum, until one is joined.
inline Part joined(global const Part *parts, ulong count) {
    Part all = {-INFINITY, 0};
    for (ulong i = 0; i < count; i++) all.most = GREATEST(all.most, parts[i].most);
    for (ulong i = 0; i < count; i++) {
        if (parts[i].most != -INFINITY) all.sum += parts[i].sum * exp(parts[i].most - all.most);
    }
    return all;
}

#if ITEMS > 1
inline C_r of_group(local C_r *shared_numbers, C_r own, int is_sum) {
    uint me = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    shared_numbers[me] = own;
    for (uint half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_size) {
            C_r a = shared_numbers[me], b = shared_numbers[me + half_size];
            shared_numbers[me] = is_sum ? a + b : GREATEST(a, b);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return shared_numbers[0];
}
#define OF_GROUP(own, is_sum) of_group(shared_numbers, own, is_sum)
#else
#define OF_GROUP(own, is_sum) (own)
#endif

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, global const T_x *px, long ax, global Part *parts, Kept kept,
         ulong lanes, ulong count, ulong stretches, ulong inner, long step_x, long step_r, int mode) {
    ulong unit = get_global_id(0);
    int last = kept.rank - 1;
#if ITEMS == 1
    if (mode & LANES) {
        ulong blocks = (inner + ACROSS * WIDTH - 1) / (ACROSS * WIDTH);
        ulong first = unit % blocks * (ACROSS * WIDTH), rest = unit / blocks;
        ulong stretch = rest % stretches, lane = rest / stretches * inner + first;
        if (lane >= lanes) return;
        ulong own = min(inner - first, (ulong)ACROSS * WIDTH);
        ulong begin = count * stretch / stretches, end = count * (stretch + 1) / stretches;
        locate(lane, &kept, &ax, &ar);
        long beside = kept.r[last];
        Numbers most[ACROSS], sum[ACROSS];
        if (mode & COUNT) {
            for (int v = 0; v < ACROSS; v++) most[v].all = -INFINITY, sum[v].all = 0;
            for (ulong i = begin; i < end; i++) {
                global const T_x *p = px + ax + (long)i * step_x;
                for (uint v = 0; v < ACROSS; v++) {
                    if (v * WIDTH >= own) break;
                    CV_r x = numbers(p + v * WIDTH, 1, own - v * WIDTH);
                    most[v].all = GREATESTV(most[v].all, x);
                }
            }
            for (ulong i = begin; i < end; i++) {
                global const T_x *p = px + ax + (long)i * step_x;
                for (uint v = 0; v < ACROSS; v++) {
                    if (v * WIDTH >= own) break;
                    CV_r x = numbers(p + v * WIDTH, 1, own - v * WIDTH);
                    sum[v].all += exp(x - most[v].all);
                }
            }
            for (ulong i = 0; i < own; i++) {
                Part part = {most[i / WIDTH].each[i % WIDTH], sum[i / WIDTH].each[i % WIDTH]};
                if (stretches > 1) parts[(lane + i) * stretches + stretch] = part;
            }
        }
        if (!(mode & WRITE)) return;
        if (stretches > 1) {
            for (ulong i = 0; i < own; i++) {
                Part part = joined(parts + (lane + i) * stretches, stretches);
                most[i / WIDTH].each[i % WIDTH] = part.most;
                sum[i / WIDTH].each[i % WIDTH] = part.sum;
            }
        }
        for (int v = 0; LOGARITHM && v < ACROSS; v++) sum[v].all = log(sum[v].all);
        for (ulong i = begin; i < end; i++) {
            global const T_x *p = px + ax + (long)i * step_x;
            global T_r *r = pr + ar + (long)i * step_r;
            for (uint v = 0; v < ACROSS; v++) {
                if (v * WIDTH >= own) break;
                CV_r x = numbers(p + v * WIDTH, 1, own - v * WIDTH);
                put(r + v * WIDTH * beside, beside, own - v * WIDTH, x, most[v].all, sum[v].all);
            }
        }
        return;
    }
    uint me = 0;
#else
    local C_r shared_numbers[GROUP];
    uint me = get_local_id(0);
    unit = get_group_id(0);
#endif
    ulong lane = unit / stretches, stretch = unit % stretches;
    if (lane >= lanes) return;
    ulong begin = count * stretch / stretches, own = count * (stretch + 1) / stretches - begin;
    locate(lane, &kept, &ax, &ar);
    px += ax + (long)begin * step_x;
    pr += ar + (long)begin * step_r;
    Part part;
    if (mode & COUNT) {
        Numbers most, sum;
        most.all = -INFINITY;
        for (ulong i = me * WIDTH; i < own; i += ITEMS * WIDTH) {
            CV_r x = numbers(px + (long)i * step_x, step_x, own - i);
            most.all = GREATESTV(most.all, x);
        }
        C_r greatest = most.each[0];
        for (int i = 1; i < WIDTH; i++) greatest = GREATEST(greatest, most.each[i]);
        part.most = OF_GROUP(greatest, 0);
        sum.all = 0;
        for (ulong i = me * WIDTH; i < own; i += ITEMS * WIDTH) {
            sum.all += exp(numbers(px + (long)i * step_x, step_x, own - i) - part.most);
        }
        C_r total = 0;
        for (int i = 0; i < WIDTH; i++) total += sum.each[i];
        part.sum = OF_GROUP(total, 1);
        if (stretches > 1 && me == 0) parts[unit] = part;
    }
    if (!(mode & WRITE)) return;
    if (stretches > 1) part = joined(parts + lane * stretches, stretches);
    CV_r most = part.most, sum = LOGARITHM ? log(part.sum) : part.sum;
    for (ulong i = me * WIDTH; i < own; i += ITEMS * WIDTH) {
        CV_r x = numbers(px + (long)i * step_x, step_x, own - i);
        put(pr + (long)i * step_r, step_r, own - i, x, most, sum);
    }
}
