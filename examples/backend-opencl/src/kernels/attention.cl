// Scaled-dot-product attention. A group computes a row of a result: its work-items take the other rows in turns,
// a tile of GROUP at once, and then the columns. A batch has L queries of E numbers, and S keys, with values of V
// numbers. Logarithms are of T_s.
#define FORWARD 0
#define QUERY 1
#define KEY 2

// The columns of a result that a work-item adds up at once.
#define OWN 4

typedef struct { long shape[RANK]; long mask[RANK]; } Batch;
typedef struct { long l, s, e, v, mask_l, mask_s, mask_kind, is_causal; } Sizes;

#define NO_MASK 0
#define BOOLS 1

inline ACC dot_of(global const T_x *a, global const T_x *b, long count) {
    ACC sum = 0;
    for (long i = 0; i < count; i++) sum += LOAD_x(a, i) * LOAD_x(b, i);
    return sum;
}

// The score of a query with a key, -inf where it doesn't count.
inline ACC score_of(const Sizes *n, global const T_x *q, global const T_x *k, global const uchar *mask,
                    long at, long i, long j, ACC scale) {
    if (n->is_causal && j > i) return -INFINITY;
    at += i * n->mask_l + j * n->mask_s;
    if (n->mask_kind == BOOLS && !mask[at]) return -INFINITY;
    ACC score = dot_of(q + i * n->e, k + j * n->e, n->e) * scale;
    return n->mask_kind > BOOLS ? score + LOAD_x((global const T_x *)mask, at) : score;
}

inline ACC most_of_group(local ACC *shared_numbers, ACC own) {
    uint me = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    shared_numbers[me] = own;
    for (uint half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_size) {
            ACC a = shared_numbers[me], b = shared_numbers[me + half_size];
            shared_numbers[me] = b > a || b != b ? b : a;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return shared_numbers[0];
}

inline long mask_at(ulong batch, const Batch *batches) {
    long at = 0;
    for (int dim = RANK - 1; dim >= 0; dim--) {
        ulong size = batches->shape[dim], rest = batch / size;
        at += (long)(batch - rest * size) * batches->mask[dim];
        batch = rest;
    }
    return at;
}

// The weight of a score among a query's.
inline ACC weight_of(ACC score, ACC logarithm) {
    return score == -INFINITY || logarithm == -INFINITY ? 0 : exp(score - logarithm);
}

#define TENSORS                                                                          \
    global const T_x *pq, long aq, global const T_x *pk, long ak, global const T_x *pv,  \
        long av, global const uchar *mask, long am, Batch batches, Sizes n, ACC scale

#define LOCATE(rows)                                                                     \
    local ACC shared_numbers[GROUP];                                                     \
    uint me = get_local_id(0);                                                           \
    long row = get_group_id(0) % (rows), batch = get_group_id(0) / (rows);               \
    long at = am + mask_at(batch, &batches);                                    \
    pq += aq + batch * n.l * n.e;                                                        \
    pk += ak + batch * n.s * n.e;                                                        \
    pv += av + batch * n.s * n.v

#if FORM == FORWARD
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global T_s *ps, long as, TENSORS) {
    LOCATE(n.l);
    local ACC weights[GROUP];
    // The greatest score, and the sum of the exponentials of the distances from it.
    ACC most = -INFINITY, sum = 0;
    for (long j = me; j < n.s; j += GROUP) {
        ACC score = score_of(&n, pq, pk, mask, at, row, j, scale);
        if (score == -INFINITY) continue;
        ACC greater = score > most || score != score ? score : most;
        sum = sum * exp(most - greater) + exp(score - greater);
        most = greater;
    }
    ACC all = most_of_group(shared_numbers, most);
    sum = most == -INFINITY ? 0 : sum * exp(most - all);
    sum = sum_of_column(shared_numbers, sum, 1);
    ACC logarithm = all == -INFINITY ? all : all + log(sum);
    if (me == 0) STORE_s(ps, as + get_group_id(0), logarithm);
    pr += ar + get_group_id(0) * n.v;
    for (long first = 0; first < n.v; first += OWN * GROUP) {
        ACC own[OWN];
        for (int c = 0; c < OWN; c++) own[c] = 0;
        for (long begin = 0; begin < n.s; begin += GROUP) {
            long j = begin + me, count = min(n.s - begin, (long)GROUP);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (j < n.s) {
                ACC score = score_of(&n, pq, pk, mask, at, row, j, scale);
                weights[me] = score == -INFINITY || all == -INFINITY ? 0 : exp(score - all) / sum;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int c = 0; c < OWN; c++) {
                long column = first + c * GROUP + me;
                if (column >= n.v) break;
                for (long k = 0; k < count; k++) {
                    // A value of weight 0 may be infinite.
                    if (weights[k] != 0) own[c] += weights[k] * LOAD_x(pv, (begin + k) * n.v + column);
                }
            }
        }
        for (int c = 0; c < OWN; c++) {
            long column = first + c * GROUP + me;
            if (column < n.v) STORE_x(pr, column, own[c]);
        }
    }
}
#elif FORM == QUERY
// The gradient of a query.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global const T_x *pg, long ag, global const T_x *po, long ao,
         global const T_s *ps, long as, TENSORS) {
    LOCATE(n.l);
    local ACC slopes[GROUP];
    ACC logarithm = LOAD_s(ps, as + get_group_id(0)), own_sum = 0;
    pg += ag + get_group_id(0) * n.v;
    po += ao + get_group_id(0) * n.v;
    for (long c = me; c < n.v; c += GROUP) own_sum += LOAD_x(pg, c) * LOAD_x(po, c);
    ACC mean = sum_of_column(shared_numbers, own_sum, 1);
    pr += ar + get_group_id(0) * n.e;
    for (long first = 0; first < n.e; first += OWN * GROUP) {
        ACC own[OWN];
        for (int c = 0; c < OWN; c++) own[c] = 0;
        for (long begin = 0; begin < n.s; begin += GROUP) {
            long j = begin + me, count = min(n.s - begin, (long)GROUP);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (j < n.s) {
                ACC weight = weight_of(score_of(&n, pq, pk, mask, at, row, j, scale), logarithm);
                slopes[me] = weight == 0 ? 0 : weight * (dot_of(pg, pv + j * n.v, n.v) - mean) * scale;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int c = 0; c < OWN; c++) {
                long column = first + c * GROUP + me;
                if (column >= n.e) break;
                for (long k = 0; k < count; k++) {
                    if (slopes[k] != 0) own[c] += slopes[k] * LOAD_x(pk, (begin + k) * n.e + column);
                }
            }
        }
        for (int c = 0; c < OWN; c++) {
            long column = first + c * GROUP + me;
            if (column < n.e) STORE_x(pr, column, own[c]);
        }
    }
}
#else
// The gradients of a key and of its value.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global T_x *pw, long aw, global const T_x *pg, long ag,
         global const T_x *po, long ao, global const T_s *ps, long as, TENSORS) {
    LOCATE(n.s);
    local ACC slopes[GROUP];
    pg += ag + batch * n.l * n.v;
    po += ao + batch * n.l * n.v;
    pr += ar + get_group_id(0) * n.e;
    pw += aw + get_group_id(0) * n.v;
    long widest = max(n.e, n.v);
    for (long first = 0; first < widest; first += OWN * GROUP) {
        ACC keys[OWN], values[OWN];
        for (int c = 0; c < OWN; c++) keys[c] = 0, values[c] = 0;
        for (long begin = 0; begin < n.l; begin += GROUP) {
            long query = begin + me, count = min(n.l - begin, (long)GROUP);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (query < n.l) {
                ACC logarithm = LOAD_s(ps, as + batch * n.l + query);
                ACC weight = weight_of(score_of(&n, pq, pk, mask, at, query, row, scale), logarithm);
                global const T_x *g = pg + query * n.v;
                ACC slope = 0;
                if (weight != 0) {
                    slope = dot_of(g, pv + row * n.v, n.v) - dot_of(g, po + query * n.v, n.v);
                }
                shared_numbers[me] = weight;
                slopes[me] = weight * slope * scale;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int c = 0; c < OWN; c++) {
                long column = first + c * GROUP + me;
                for (long k = 0; k < count && column < widest; k++) {
                    if (shared_numbers[k] == 0) continue;
                    if (column < n.e) keys[c] += slopes[k] * LOAD_x(pq, (begin + k) * n.e + column);
                    if (column < n.v) {
                        values[c] += shared_numbers[k] * LOAD_x(pg, (begin + k) * n.v + column);
                    }
                }
            }
        }
        for (int c = 0; c < OWN; c++) {
            long column = first + c * GROUP + me;
            if (column < n.e) STORE_x(pr, column, keys[c]);
            if (column < n.v) STORE_x(pw, column, values[c]);
        }
    }
}
#endif
