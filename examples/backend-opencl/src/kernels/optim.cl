// A step of an optimizer: a work-item for each element. T_x are parameters and gradients, T_s the state.
typedef struct { ACC sign, decay, keep, beta1, beta2, rest1, rest2, rate, unbias, eps; } Adam;
typedef struct { ACC sign, decay, rate, momentum, rest; } Descent;

#define DECAYS 1
#define AMSGRAD 2
#define MOMENTUM 4
#define FIRST 8
#define NESTEROV 16

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global const T_x *pg, long ag, global T_x *pp, long ap, global T_s *pa, long aa,
         global T_s *pb, long ab, global T_s *pc, long ac, ulong count, STEP step, int flags) {
    ulong i = get_global_id(0);
    if (i >= count) return;
    ACC parameter = LOAD_x(pp, ap + i), slope = LOAD_x(pg, ag + i) * step.sign;
    // Without a decay infinite parameters stay out of the slope: 0 times infinity is NaN.
    if (flags & DECAYS) slope = fma(parameter, step.decay, slope);
#if IS_ADAM
    ACC first = fma(slope, step.rest1, LOAD_s(pa, aa + i) * step.beta1);
    ACC second = fma(slope * slope, step.rest2, LOAD_s(pb, ab + i) * step.beta2), moment = second;
    STORE_s(pa, aa + i, first);
    STORE_s(pb, ab + i, second);
    if (flags & AMSGRAD) {
        ACC greatest = LOAD_s(pc, ac + i);
        // A NaN on either side stays.
        moment = second > greatest || second != second ? second : greatest;
        STORE_s(pc, ac + i, moment);
    }
    ACC scale = fma(sqrt(moment), step.unbias, step.eps);
    ACC next = fma(first / scale, step.rate, parameter * step.keep);
#else
    if (flags & MOMENTUM) {
        ACC before = slope;
        if (!(flags & FIRST)) before = fma(slope, step.rest, LOAD_s(pa, aa + i) * step.momentum);
        STORE_s(pa, aa + i, before);
        slope = flags & NESTEROV ? fma(before, step.momentum, slope) : before;
    }
    ACC next = fma(slope, step.rate, parameter);
#endif
    STORE_x(pp, ap + i, next);
}
