// Matrix products. A group of 8 x 8 work-items makes a tile of 32 x 32 elements, each work-item 4 x 4
// of them, from tiles of both matrices in local memory.
#define SIDE 8
#define TILE 32
#define DEPTH 16

typedef struct { long shape[BATCH]; long a[BATCH]; long b[BATCH]; } Batch;

kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void run(global T_r *pr, long ar, global const T_x *pa, long aa, global const T_x *pb, long ab,
         Batch batch, long rows, long columns, long depth, long row_a, long depth_a, long depth_b,
         long column_b) {
    local ACC tile_a[DEPTH][TILE];
    local ACC tile_b[DEPTH][TILE];
    uint column_id = get_local_id(0), row_id = get_local_id(1), me = row_id * SIDE + column_id;
    long first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;
    ulong rest = get_group_id(2);
    ar += (long)rest * rows * columns;
    for (int dim = BATCH - 1; dim >= 0; dim--) {
        ulong size = batch.shape[dim], q = rest / size;
        long p = rest - q * size;
        rest = q;
        aa += p * batch.a[dim];
        ab += p * batch.b[dim];
    }
    ACC sums[4][4];
    for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) sums[i][j] = 0;
    for (long begin = 0; begin < depth; begin += DEPTH) {
        for (uint at = me; at < DEPTH * TILE; at += SIDE * SIDE) {
            long k = begin + at % DEPTH, row = first_row + at / DEPTH;
            int inside = k < depth && row < rows;
            tile_a[at % DEPTH][at / DEPTH] =
                inside ? (ACC)LOAD_x(pa, aa + row * row_a + k * depth_a) : (ACC)0;
            k = begin + at / TILE;
            long column = first_column + at % TILE;
            inside = k < depth && column < columns;
            tile_b[at / TILE][at % TILE] =
                inside ? (ACC)LOAD_x(pb, ab + k * depth_b + column * column_b) : (ACC)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < DEPTH; k++) {
            for (int i = 0; i < 4; i++) {
                ACC a = tile_a[k][row_id * 4 + i];
                for (int j = 0; j < 4; j++) {
                    sums[i][j] = ADD_PRODUCT(sums[i][j], a, tile_b[k][column_id * 4 + j]);
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < 4; i++) {
        long row = first_row + row_id * 4 + i;
        for (int j = 0; j < 4; j++) {
            long column = first_column + column_id * 4 + j;
            if (row < rows && column < columns) {
                STORE_r(pr, ar + row * columns + column, (C_x)sums[i][j]);
            }
        }
    }
}
