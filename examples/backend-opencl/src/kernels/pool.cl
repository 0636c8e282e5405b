// Pooling over windows of up to three dimensions, of planes that lie one after another: a work-item for each
// element of the result.
#define MAXIMUM 0
#define MAXIMUM_BACKWARD 1
#define STRAYS 2
#define AVERAGE 3
#define AVERAGE_BACKWARD 4

typedef struct {
    long in[3], out[3], kernel_size[3], stride[3], padding[3], dilation[3];
    long divisor, counts_padding, is_adaptive, in_plane, out_plane;
} Windows;

// The elements of window o along a dimension: from begin to end, whether they exist or not.
inline void window(const Windows *w, int d, long o, long *begin, long *end) {
    if (w->is_adaptive) {
        *begin = o * w->in[d] / w->out[d];
        *end = ((o + 1) * w->in[d] + w->out[d] - 1) / w->out[d];
    } else {
        *begin = o * w->stride[d] - w->padding[d];
        *end = *begin + (w->kernel_size[d] - 1) * w->dilation[d] + 1;
    }
}

// The windows along a dimension that have element i: some of those from *begin to *end.
inline void windows_of(const Windows *w, int d, long i, long *begin, long *end) {
    if (w->is_adaptive) {
        *begin = i * w->out[d] / w->in[d];
        *end = ((i + 1) * w->out[d] + w->in[d] - 1) / w->in[d];
    } else {
        long at = i + w->padding[d], reach = (w->kernel_size[d] - 1) * w->dilation[d];
        *begin = at <= reach ? 0 : (at - reach + w->stride[d] - 1) / w->stride[d];
        *end = min(at / w->stride[d] + 1, w->out[d]);
    }
}

// The divisor of the sum of a window.
inline ACC divisor_of(const Windows *w, const long o[3]) {
    if (w->divisor) return w->divisor;
    long count = 1;
    for (int d = 0; d < 3; d++) {
        long begin, end;
        window(w, d, o[d], &begin, &end);
        if (w->counts_padding) end = min(end, w->in[d] + w->padding[d]);
        else begin = max(begin, 0L), end = min(end, w->in[d]);
        count *= end - begin;
    }
    return count;
}

#define LOCATE(sizes, plane_size)                                                            \
    ulong me = get_global_id(0);                                                             \
    if (me >= count) return;                                                                 \
    long plane = me / (plane_size), own = me % (plane_size);                                 \
    long at[3] = {own / (sizes[1] * sizes[2]), own / sizes[2] % sizes[1], own % sizes[2]}

#if FORM == MAXIMUM
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global long *pi, long ai, global const T_x *px, long ax, Windows w,
         ulong count) {
    LOCATE(w.out, w.out_plane);
    px += ax + plane * w.in_plane;
    long begin[3], end[3], found = -1;
    for (int d = 0; d < 3; d++) {
        window(&w, d, at[d], &begin[d], &end[d]);
        end[d] = min(end[d], w.in[d]);
        // The first element that isn't padding.
        if (begin[d] < 0) begin[d] += (w.dilation[d] - 1 - begin[d]) / w.dilation[d] * w.dilation[d];
    }
    C_x most = 0;
    for (long i = begin[0]; i < end[0]; i += w.dilation[0]) {
        for (long j = begin[1]; j < end[1]; j += w.dilation[1]) {
            for (long k = begin[2]; k < end[2]; k += w.dilation[2]) {
                long from = (i * w.in[1] + j) * w.in[2] + k;
                C_x x = LOAD_x(px, from);
                if (found < 0 || x > most || (x != x && most == most)) most = x, found = from;
            }
        }
    }
    STORE_x(pr, ar + me, most);
    pi[ai + me] = found;
}
#elif FORM == MAXIMUM_BACKWARD
// Adds the gradients of the windows of an element whose index is the element's.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global const T_x *pg, long ag, global const long *pi, long ai, Windows w,
         ulong count) {
    LOCATE(w.in, w.in_plane);
    long begin[3], end[3];
    for (int d = 0; d < 3; d++) windows_of(&w, d, at[d], &begin[d], &end[d]);
    ACC sum = 0;
    for (long i = begin[0]; i < end[0]; i++) {
        for (long j = begin[1]; j < end[1]; j++) {
            for (long k = begin[2]; k < end[2]; k++) {
                long from = plane * w.out_plane + (i * w.out[1] + j) * w.out[2] + k;
                if (pi[ai + from] == own) sum += LOAD_x(pg, ag + from);
            }
        }
    }
    STORE_x(pr, ar + me, sum);
}
#elif FORM == STRAYS
// Whether the element of an index is among those that windows of the element were looked for in.
inline int is_looked_for(const Windows *w, long index, long from) {
    long at[3] = {index / (w->in[1] * w->in[2]), index / w->in[2] % w->in[1], index % w->in[2]};
    long o[3] = {from / (w->out[1] * w->out[2]), from / w->out[2] % w->out[1], from % w->out[2]};
    for (int d = 0; d < 3; d++) {
        long begin, end;
        windows_of(w, d, at[d], &begin, &end);
        if (o[d] < begin || o[d] >= end) return 0;
    }
    return 1;
}

// A group for each plane: it looks for indices that aren't in their window, and for those that aren't in the
// plane, which are errors.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global const T_x *pg, long ag, global const long *pi, long ai, Windows w,
         ulong count, global int *records, int call) {
    local int has_strays;
    long plane = get_group_id(0);
    pr += ar + plane * w.in_plane;
    pg += ag + plane * w.out_plane;
    pi += ai + plane * w.out_plane;
    if (get_local_id(0) == 0) has_strays = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (long o = get_local_id(0); o < w.out_plane; o += GROUP) {
        long index = pi[o];
        if (index < 0 || index >= w.in_plane) {
            global int *record = records + 4 * call;
            if (atomic_cmpxchg(record, 0, 1) == 0) {
                record[1] = 0;
                record[2] = (int)(uint)(ulong)index;
                record[3] = (int)(uint)((ulong)index >> 32);
            }
        } else if (!is_looked_for(&w, index, o)) {
            has_strays = 1;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!has_strays) return;
    // Other indices than the forward's: each element looks for its own among all.
    for (long i = get_local_id(0); i < w.in_plane; i += GROUP) {
        ACC sum = 0;
        for (long o = 0; o < w.out_plane; o++) {
            if (pi[o] == i) sum += LOAD_x(pg, o);
        }
        STORE_x(pr, i, sum);
    }
}
#elif FORM == AVERAGE
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global const T_x *px, long ax, Windows w, ulong count) {
    LOCATE(w.out, w.out_plane);
    px += ax + plane * w.in_plane;
    long begin[3], end[3];
    for (int d = 0; d < 3; d++) {
        window(&w, d, at[d], &begin[d], &end[d]);
        begin[d] = max(begin[d], 0L);
        end[d] = min(end[d], w.in[d]);
    }
    ACC sum = 0;
    for (long i = begin[0]; i < end[0]; i++) {
        for (long j = begin[1]; j < end[1]; j++) {
            for (long k = begin[2]; k < end[2]; k++) {
                sum += LOAD_x(px, (i * w.in[1] + j) * w.in[2] + k);
            }
        }
    }
    STORE_x(pr, ar + me, sum / divisor_of(&w, at));
}
#else
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global const T_x *pg, long ag, Windows w, ulong count) {
    LOCATE(w.in, w.in_plane);
    pg += ag + plane * w.out_plane;
    long begin[3], end[3];
    for (int d = 0; d < 3; d++) windows_of(&w, d, at[d], &begin[d], &end[d]);
    ACC sum = 0;
    for (long i = begin[0]; i < end[0]; i++) {
        for (long j = begin[1]; j < end[1]; j++) {
            for (long k = begin[2]; k < end[2]; k++) {
                long o[3] = {i, j, k};
                sum += LOAD_x(pg, (i * w.out[1] + j) * w.out[2] + k) / divisor_of(&w, o);
            }
        }
    }
    STORE_x(pr, ar + me, sum);
}
#endif
