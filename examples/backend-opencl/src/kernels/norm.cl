// Normalizations, and the gradients of softmax, along lanes. A group computes `columns` lanes, whose elements
// lie side by side, or one; its work-items take their elements in turns.
//
// Element i of lane l lies at l / inner * a + l % inner * b + i / s * p + i % s * q.
typedef struct { long inner, a, b, s, p, q, lanes, count; } Lanes;
// The element of the weight for an element of a lane is l % channels * first + i / each; in sums for a weight,
// each of whose elements is a lane, the statistics of an element are those of i / s * row + l / channels.
typedef struct { long channels, first, each, row; } Others;

#define RMS 1
#define GIVEN 2
#define LOGARITHM 4

inline long first_of(const Lanes *l, long lane) {
    return lane / l->inner * l->a + lane % l->inner * l->b;
}

inline long element(const Lanes *l, long i) {
    return i < l->s ? i * l->q : i / l->s * l->p + i % l->s * l->q;
}

#define ROWS_OF_A_GROUP                                                                   \
    local ACC shared_numbers[GROUP];                                                      \
    uint me = get_local_id(0);                                                            \
    long own = (long)get_group_id(0) * columns + me % columns, step = GROUP / columns;    \
    int is_there = own < l.lanes, is_first = is_there && me < columns;                    \
    long lane = is_there ? own : l.lanes - 1, begin = me / columns, at = first_of(&l, lane)

#define SUM(own) sum_of_column(shared_numbers, own, columns)

#if FORM == 0
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *py, long ay, global const T_x *px, long ax, ANY(mean), ANY(rstd), ANY(weight),
         ANY(bias), ANY(old_mean), ANY(old_variance), ANY(new_mean), ANY(new_variance), Lanes l,
         Others others, uint columns, int mode, ACC eps, ACC momentum) {
    ROWS_OF_A_GROUP;
    ACC mean = 0, rstd;
    if (mode & GIVEN) {
        mean = LOAD_ANY(mean, lane);
        rstd = 1 / sqrt(LOAD_ANY(rstd, lane) + eps);
    } else {
        ACC sum = 0;
        if (!(mode & RMS)) {
            for (long i = begin; i < l.count; i += step) sum += LOAD_x(px, ax + at + element(&l, i));
            mean = SUM(sum) / l.count;
            sum = 0;
        }
        for (long i = begin; i < l.count; i += step) {
            ACC distance = LOAD_x(px, ax + at + element(&l, i)) - mean;
            sum += distance * distance;
        }
        ACC squares = SUM(sum);
        rstd = 1 / sqrt(squares / l.count + eps);
        if (is_first) {
            if (!(mode & RMS)) STORE_ANY(mean, lane, mean);
            STORE_ANY(rstd, lane, rstd);
            if (told_mean) {
                ACC old = LOAD_ANY(old_mean, lane), old_square = LOAD_ANY(old_variance, lane);
                ACC unbiased = squares / (l.count - 1), kept = 1 - momentum;
                STORE_ANY(new_mean, lane, kept * old + momentum * mean);
                STORE_ANY(new_variance, lane, kept * old_square + momentum * unbiased);
            }
        }
    }
    long channel = lane % others.channels * others.first;
    for (long i = begin; is_there && i < l.count; i += step) {
        long to = at + element(&l, i), w = channel + i / others.each;
        ACC y = (LOAD_x(px, ax + to) - mean) * rstd;
        if (tweight) y *= LOAD_ANY(weight, w);
        if (tbias) y += LOAD_ANY(bias, w);
        STORE_x(py, ay + to, y);
    }
}
#elif FORM == 1
// The gradient of x.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, global const T_x *pg, long ag, global const T_x *px, long ax,
         ANY(mean), ANY(rstd), ANY(weight), Lanes l, Others others, uint columns, int mode, ACC eps) {
    ROWS_OF_A_GROUP;
    ACC mean = mode & RMS ? 0 : LOAD_ANY(mean, lane), rstd = LOAD_ANY(rstd, lane);
    if (mode & GIVEN) rstd = 1 / sqrt(rstd + eps);
    long channel = lane % others.channels * others.first;
    ACC gradients = 0, products = 0;
    if (!(mode & GIVEN)) {
        for (long i = begin; i < l.count; i += step) {
            long from = at + element(&l, i);
            ACC g = LOAD_x(pg, ag + from);
            if (tweight) g *= LOAD_ANY(weight, channel + i / others.each);
            gradients += g;
            products += g * ((LOAD_x(px, ax + from) - mean) * rstd);
        }
        gradients = mode & RMS ? 0 : SUM(gradients) / l.count;
        products = SUM(products) / l.count;
    }
    for (long i = begin; is_there && i < l.count; i += step) {
        long to = at + element(&l, i);
        ACC g = LOAD_x(pg, ag + to);
        if (tweight) g *= LOAD_ANY(weight, channel + i / others.each);
        if (!(mode & GIVEN)) g -= gradients + (LOAD_x(px, ax + to) - mean) * rstd * products;
        STORE_x(pr, ar + to, g * rstd);
    }
}
#elif FORM == 2
// The gradients of weight and bias, each of whose elements is a lane.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(ANY(dweight), ANY(dbias), global const T_x *pg, long ag, global const T_x *px, long ax,
         ANY(mean), ANY(rstd), Lanes l, Others others, uint columns, int mode, ACC eps) {
    ROWS_OF_A_GROUP;
    ACC weight = 0, bias = 0;
    for (long i = begin; i < l.count; i += step) {
        long from = at + element(&l, i), of = i / l.s * others.row + lane / others.channels;
        ACC g = LOAD_x(pg, ag + from);
        bias += g;
        if (tdweight) {
            ACC rstd = LOAD_ANY(rstd, of), x = LOAD_x(px, ax + from);
            if (mode & GIVEN) rstd = 1 / sqrt(rstd + eps);
            if (!(mode & RMS)) x -= LOAD_ANY(mean, of);
            weight += g * (x * rstd);
        }
    }
    weight = SUM(weight);
    bias = SUM(bias);
    if (is_first && tdweight) STORE_ANY(dweight, lane, weight);
    if (is_first && tdbias) STORE_ANY(dbias, lane, bias);
}
#else
// The gradient of softmax, or of its logarithm.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pr, long ar, ANY(g), ANY(s), Lanes l, uint columns, int mode) {
    ROWS_OF_A_GROUP;
    ACC sum = 0;
    for (long i = begin; i < l.count; i += step) {
        long from = at + element(&l, i);
        ACC g = LOAD_ANY(g, from);
        sum += mode & LOGARITHM ? g : g * LOAD_ANY(s, from);
    }
    sum = SUM(sum);
    for (long i = begin; is_there && i < l.count; i += step) {
        long to = at + element(&l, i);
        ACC g = LOAD_ANY(g, to), s = LOAD_ANY(s, to);
        STORE_x(pr, ar + to, mode & LOGARITHM ? g - exp(s) * sum : s * (g - sum));
    }
}
#endif
