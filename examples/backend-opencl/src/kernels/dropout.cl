// A block of the stream for each work-item: four elements.
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run(global T_x *py, long ay, global uchar *pm, long am, global const T_x *px, long ax, ulong count,
         ulong threshold, ulong seed, ulong offset, ACC scale) {
    ulong block = get_global_id(0), i = block * 4;
    if (i >= count) return;
    uint4 made = philox(seed, offset + block);
    uint words[4] = {made.x, made.y, made.z, made.w};
    for (int j = 0; j < 4 && i + j < count; j++) {
        int is_kept = words[j] >= threshold;
        ACC product = LOAD_x(px, ax + i + j) * scale;
        STORE_x(py, ay + i + j, is_kept ? product : (ACC)0);
        pm[am + i + j] = is_kept;
    }
}
