// Convolutions of up to three dimensions of space, in float32 or in float64. A convolution's input has C
// channels and places `in`, its output O channels and places `out`.
#define FORWARD 0
#define TRANSPOSED 1
#define WEIGHT_GRADIENT 2

typedef struct {
    long in[3], out[3], size[3], stride[3], padding[3], dilation[3];
    long images, in_channels, out_channels, groups;
} Shape;

#define PLACES(sizes) (sizes[0] * sizes[1] * sizes[2])
#define PLACE(sizes, at) {(at) / (sizes[1] * sizes[2]), (at) / sizes[2] % sizes[1], (at) % sizes[2]}

// The place that output o sees through place k of the kernel, along a dimension.
inline long seen(const Shape *s, int d, long o, long k) {
    return o * s->stride[d] - s->padding[d] + k * s->dilation[d];
}

// Whether an output sees place i through place k of the kernel, and which; outside of the outputs are zeros.
inline int is_seen(const Shape *s, int d, long i, long k, long *o) {
    long at = i + s->padding[d] - k * s->dilation[d];
    *o = at < 0 ? -1 : at / s->stride[d];
    return at % s->stride[d] == 0;
}

#if FORM == FORWARD
// A work-item for each element of the output.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *py, long ay, global const T_x *px, long ax, global const T_x *pw, long aw,
         global const T_x *pb, long ab, Shape s, ulong count, int has_bias) {
    ulong me = get_global_id(0);
    if (me >= count) return;
    long places = PLACES(s.out), place = me % places, o = me / places % s.out_channels;
    long image = me / places / s.out_channels, at[3] = PLACE(s.out, place);
    long channels = s.in_channels / s.groups, first = o / (s.out_channels / s.groups) * channels;
    px += ax + (image * s.in_channels + first) * PLACES(s.in);
    pw += aw + o * channels * PLACES(s.size);
    ACC sum = has_bias ? LOAD_x(pb, ab + o) : (ACC)0;
    for (long c = 0; c < channels; c++) {
        for (long i = 0; i < s.size[0]; i++) {
            long a = seen(&s, 0, at[0], i);
            for (long j = 0; j < s.size[1]; j++) {
                long b = seen(&s, 1, at[1], j);
                for (long k = 0; k < s.size[2]; k++) {
                    long d = seen(&s, 2, at[2], k);
                    // A zero outside counts: times an infinite weight it is NaN.
                    ACC x = 0, w = LOAD_x(pw, ((c * s.size[0] + i) * s.size[1] + j) * s.size[2] + k);
                    int is_there = a >= 0 && a < s.in[0] && b >= 0 && b < s.in[1];
                    if (is_there && d >= 0 && d < s.in[2]) {
                        x = LOAD_x(px, ((c * s.in[0] + a) * s.in[1] + b) * s.in[2] + d);
                    }
                    sum += w * x;
                }
            }
        }
    }
    STORE_x(py, ay + me, activated(sum));
}
#elif FORM == TRANSPOSED
// A work-item for each element of the convolution's input.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *px, long ax, global const T_x *py, long ay, global const T_x *pw, long aw,
         global const T_x *pb, long ab, Shape s, ulong count, int has_bias) {
    ulong me = get_global_id(0);
    if (me >= count) return;
    long places = PLACES(s.in), place = me % places, c = me / places % s.in_channels;
    long image = me / places / s.in_channels, at[3] = PLACE(s.in, place);
    long channels = s.in_channels / s.groups, own = s.out_channels / s.groups;
    long first = c / channels * own;
    py += ay + (image * s.out_channels + first) * PLACES(s.out);
    pw += aw + (first * channels + c % channels) * PLACES(s.size);
    ACC sum = has_bias ? LOAD_x(pb, ab + c) : (ACC)0;
    for (long o = 0; o < own; o++) {
        for (long i = 0; i < s.size[0]; i++) {
            long a, b, d;
            if (!is_seen(&s, 0, at[0], i, &a)) continue;
            for (long j = 0; j < s.size[1]; j++) {
                if (!is_seen(&s, 1, at[1], j, &b)) continue;
                for (long k = 0; k < s.size[2]; k++) {
                    if (!is_seen(&s, 2, at[2], k, &d)) continue;
                    long of = o * channels * s.size[0] + i;
                    ACC y = 0, w = LOAD_x(pw, (of * s.size[1] + j) * s.size[2] + k);
                    int is_there = a >= 0 && a < s.out[0] && b >= 0 && b < s.out[1];
                    if (is_there && d >= 0 && d < s.out[2]) {
                        y = LOAD_x(py, ((o * s.out[0] + a) * s.out[1] + b) * s.out[2] + d);
                    }
                    sum += w * y;
                }
            }
        }
    }
    STORE_x(px, ax + me, activated(sum));
}
#elif FORM == WEIGHT_GRADIENT
// A group for each element of the weight, whose work-items take the places of all images in turns.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pw, long aw, global const T_x *px, long ax, global const T_x *pg, long ag, Shape s) {
    local ACC shared_numbers[GROUP];
    ulong element = get_group_id(0);
    long size = PLACES(s.size), within = element % size, at[3] = PLACE(s.size, within);
    long channels = s.in_channels / s.groups, c = element / size % channels;
    long o = element / size / channels, places = PLACES(s.out);
    c += o / (s.out_channels / s.groups) * channels;
    ACC sum = 0;
    for (long i = get_local_id(0); i < s.images * places; i += GROUP) {
        long image = i / places, place = i % places, from = image * s.in_channels + c;
        long of[3] = PLACE(s.out, place);
        int is_there = 1;
        for (int d = 0; d < 3; d++) {
            long a = seen(&s, d, of[d], at[d]);
            is_there &= a >= 0 && a < s.in[d];
            from = from * s.in[d] + a;
        }
        ACC x = is_there ? LOAD_x(px, ax + from) : (ACC)0;
        sum += x * LOAD_x(pg, ag + (image * s.out_channels + o) * places + place);
    }
    sum = sum_of_column(shared_numbers, sum, 1);
    if (get_local_id(0) == 0) STORE_x(pw, aw + element, sum);
}
#else
// A group for each channel.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pb, long ab, global const T_x *pg, long ag, long images, long channels, long places) {
    local ACC shared_numbers[GROUP];
    long o = get_group_id(0);
    ACC sum = 0;
    for (long i = get_local_id(0); i < images * places; i += GROUP) {
        sum += LOAD_x(pg, ag + (i / places * channels + o) * places + i % places);
    }
    sum = sum_of_column(shared_numbers, sum, 1);
    if (get_local_id(0) == 0) STORE_x(pb, ab + o, sum);
}
#endif
