// The true elements of a mask, by chunks of neighbouring elements, one for each work-item.
typedef struct { long shape[RANK]; long mask[RANK]; } Loop;

inline long offset(ulong rest, const Loop *l) {
    long at = 0;
    for (int dim = RANK - 1; dim >= 0; dim--) {
        ulong size = l->shape[dim], q = rest / size;
        at += (long)(rest - q * size) * l->mask[dim];
        rest = q;
    }
    return at;
}

#if FORM == 0
// Counts each chunk's.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global const uchar *mask, long am, Loop l, ulong count, ulong chunk, global ulong *counts) {
    ulong me = get_global_id(0), begin = me * chunk, end = min(begin + chunk, count);
    if (begin >= count) return;
    ulong found = 0;
    for (ulong i = begin; i < end; i++) found += mask[am + offset(i, &l)] != 0;
    counts[me] = found;
}
#elif FORM == 1
// Replaces the counts by those of all chunks before, and the last by all.
kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void run(global ulong *counts, ulong chunks) {
    ulong before = 0;
    for (ulong i = 0; i < chunks; i++) {
        ulong own = counts[i];
        counts[i] = before;
        before += own;
    }
    counts[chunks] = before;
}
#else
// Writes the positions along one dimension, of `size` elements with `below` elements each.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global const uchar *mask, long am, Loop l, ulong count, ulong chunk,
         global const ulong *counts, global long *positions, long ap, long step, ulong below,
         ulong size) {
    ulong me = get_global_id(0), begin = me * chunk, end = min(begin + chunk, count);
    if (begin >= count) return;
    ulong to = counts[me];
    for (ulong i = begin; i < end; i++) {
        if (mask[am + offset(i, &l)] != 0) {
            positions[ap + (long)to * step] = (long)(i / below % size);
            to++;
        }
    }
}
#endif
