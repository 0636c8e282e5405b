// Cells of recurrent networks: a work-item for each element of a state. Gates lie side by side in a row.
inline ACC sigmoid(ACC x) { return 1 / (1 + exp(-x)); }

#if IS_BACKWARD == 0
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *ph, long ah, global T_x *pc, long ac, global T_x *pw, long aw, global const T_x *pi,
         long ai, global const T_x *pg, long ag, global const T_x *ps, long as, global const T_x *p1,
         long a1, global const T_x *p2, long a2, ulong count, ulong width, int is_biased) {
    ulong me = get_global_id(0);
    if (me >= count) return;
    ulong row = me / width, column = me % width;
    ACC from_input[GATES], from_state[GATES], state = LOAD_x(ps, as + me);
    for (int gate = 0; gate < GATES; gate++) {
        ulong one = gate * width + column, at = row * GATES * width + one;
        from_input[gate] = LOAD_x(pi, ai + at);
        from_state[gate] = LOAD_x(pg, ag + at);
        if (is_biased) {
            from_input[gate] += LOAD_x(p1, a1 + one);
            from_state[gate] += LOAD_x(p2, a2 + one);
        }
    }
#if GATES == 3
    ACC reset = sigmoid(from_input[0] + from_state[0]);
    ACC update = sigmoid(from_input[1] + from_state[1]);
    ACC fresh = tanh(from_input[2] + reset * from_state[2]);
    STORE_x(ph, ah + me, fresh + update * (state - fresh));
    ACC kept[KEPT] = {reset, update, fresh, state, from_state[2]};
#else
    ACC input = sigmoid(from_input[0] + from_state[0]), keep = sigmoid(from_input[1] + from_state[1]);
    ACC cell = tanh(from_input[2] + from_state[2]), output = sigmoid(from_input[3] + from_state[3]);
    ACC next = keep * state + input * cell;
    STORE_x(ph, ah + me, output * tanh(next));
    STORE_x(pc, ac + me, next);
    ACC kept[KEPT] = {input, keep, cell, output};
#endif
    for (int i = 0; i < KEPT; i++) STORE_x(pw, aw + (row * KEPT + i) * width + column, kept[i]);
}
#elif GATES == 3
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pi, long ai, global T_x *pg, long ag, global T_x *ps, long as, global const T_x *pd,
         long ad, global const T_x *pw, long aw, ulong count, ulong width) {
    ulong me = get_global_id(0);
    if (me >= count) return;
    ulong row = me / width, column = me % width;
    ACC kept[KEPT], slope = LOAD_x(pd, ad + me);
    for (int i = 0; i < KEPT; i++) kept[i] = LOAD_x(pw, aw + (row * KEPT + i) * width + column);
    ACC reset = kept[0], update = kept[1], fresh = kept[2], state = kept[3], hidden = kept[4];
    ACC to_fresh = slope * (1 - update) * (1 - fresh * fresh);
    ACC to_update = slope * (state - fresh) * update * (1 - update);
    ACC to_reset = to_fresh * hidden * reset * (1 - reset);
    ACC of_input[3] = {to_reset, to_update, to_fresh};
    ACC of_state[3] = {to_reset, to_update, to_fresh * reset};
    for (int gate = 0; gate < 3; gate++) {
        ulong at = (row * 3 + gate) * width + column;
        STORE_x(pi, ai + at, of_input[gate]);
        STORE_x(pg, ag + at, of_state[gate]);
    }
    STORE_x(ps, as + me, slope * update);
}
#else
// Bits 1 and 2 of `grads` say which of the gradients of the state and of the cell there are.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *pg, long ag, global T_x *ps, long as, global const T_x *ph, long ah,
         global const T_x *pc, long ac, global const T_x *po, long ao, global const T_x *pn, long an,
         global const T_x *pw, long aw, ulong count, ulong width, int grads) {
    ulong me = get_global_id(0);
    if (me >= count) return;
    ulong row = me / width, column = me % width;
    ACC kept[KEPT];
    for (int i = 0; i < KEPT; i++) kept[i] = LOAD_x(pw, aw + (row * KEPT + i) * width + column);
    ACC input = kept[0], keep = kept[1], cell = kept[2], output = kept[3];
    ACC squashed = tanh((ACC)LOAD_x(pn, an + me));
    ACC to_state = grads & 1 ? LOAD_x(ph, ah + me) : (ACC)0;
    ACC to_cell = grads & 2 ? LOAD_x(pc, ac + me) : (ACC)0;
    to_cell += to_state * output * (1 - squashed * squashed);
    ACC found[4] = {to_cell * cell * input * (1 - input),
                    to_cell * LOAD_x(po, ao + me) * keep * (1 - keep),
                    to_cell * input * (1 - cell * cell), to_state * squashed * output * (1 - output)};
    for (int gate = 0; gate < 4; gate++) {
        STORE_x(pg, ag + (row * 4 + gate) * width + column, found[gate]);
    }
    STORE_x(ps, as + me, to_cell * keep);
}
#endif
