// Softmax and its logarithm along lanes, computed in C_r.
#define READ(p, i) ((C_r)LOAD_x(p, i))

typedef struct { long shape[KEPT]; long x[KEPT]; long r[KEPT]; } Kept;

inline void offsets(ulong lane, const Kept *kept, long *x, long *r) {
    for (int dim = KEPT - 1; dim >= 0; dim--) {
        ulong size = kept->shape[dim], q = lane / size;
        long p = lane - q * size;
        lane = q;
        *x += p * kept->x[dim];
        *r += p * kept->r[dim];
    }
}

// The greatest number, or NaN if there is one.
inline C_r greatest(C_r a, C_r b) { return isnan(a) ? a : isnan(b) ? b : a > b ? a : b; }

inline C_r result(C_r x, C_r most, C_r sum, C_r log_sum) {
    return LOGARITHM ? x - most - log_sum : exp(x - most) / sum;
}

#if FORM == 0
// One work-item for each lane.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, global const T_x *px, long ax, Kept kept, ulong lanes,
         ulong count, long step_x, long step_r) {
    ulong lane = get_global_id(0);
    if (lane >= lanes) return;
    offsets(lane, &kept, &ax, &ar);
    C_r most = -INFINITY, sum = 0;
    for (ulong i = 0; i < count; i++) most = greatest(most, READ(px, ax + (long)i * step_x));
    for (ulong i = 0; i < count; i++) sum += exp(READ(px, ax + (long)i * step_x) - most);
    C_r log_sum = log(sum);
    for (ulong i = 0; i < count; i++) {
        C_r x = READ(px, ax + (long)i * step_x);
        STORE_r(pr, ar + (long)i * step_r, result(x, most, sum, log_sum));
    }
}
#else
// One group for each lane.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_r *pr, long ar, global const T_x *px, long ax, Kept kept, ulong lanes,
         ulong count, long step_x, long step_r) {
    local C_r shared_numbers[GROUP];
    uint me = get_local_id(0);
    offsets(get_group_id(0), &kept, &ax, &ar);
    C_r part = -INFINITY;
    for (ulong i = me; i < count; i += GROUP) {
        part = greatest(part, READ(px, ax + (long)i * step_x));
    }
    shared_numbers[me] = part;
    for (uint half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_size) {
            shared_numbers[me] = greatest(shared_numbers[me], shared_numbers[me + half_size]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    C_r most = shared_numbers[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    part = 0;
    for (ulong i = me; i < count; i += GROUP) part += exp(READ(px, ax + (long)i * step_x) - most);
    shared_numbers[me] = part;
    for (uint half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_size) shared_numbers[me] += shared_numbers[me + half_size];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    C_r sum = shared_numbers[0], log_sum = log(sum);
    for (ulong i = me; i < count; i += GROUP) {
        C_r x = READ(px, ax + (long)i * step_x);
        STORE_r(pr, ar + (long)i * step_r, result(x, most, sum, log_sum));
    }
}
#endif
