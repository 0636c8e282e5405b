// Matrix products. A group makes a tile of them: each work-item ROWS rows by VECTORS vectors, from a
// stretch of both matrices, whose part of the second one, on a GPU of the first, too, is in local
// memory.
//
// A product may be added unrounded: pocl's fma takes one number at a time.
#pragma OPENCL FP_CONTRACT ON

// COLUMN_ITEMS and ROW_ITEMS are a group's work-items.
#define TILE_ROWS (ROW_ITEMS * ROWS)
#define ITEM_COLUMNS (VECTORS * WIDTH)
#define TILE_COLUMNS (COLUMN_ITEMS * ITEM_COLUMNS)
#define GROUP_ITEMS (ROW_ITEMS * COLUMN_ITEMS)

#define UNROLLED _Pragma("unroll")

typedef struct { long rank; long shape[DIMS]; long a[DIMS]; long b[DIMS]; long c[DIMS]; } Batch;
// The addend's steps, and the factors of the product and of the addend.
typedef struct { long row; long column; long is_there; } Addend;
typedef struct { ACC alpha; ACC beta; } Factors;
typedef union { ACCV all; ACC each[WIDTH]; } Numbers;

kernel __attribute__((reqd_work_group_size(COLUMN_ITEMS, ROW_ITEMS, 1)))
void run(global T_r *pr, long ar, global const T_x *pa, long aa, global const T_x *pb, long ab,
         Batch batch, long rows, long columns, long depth, long row_a, long depth_a, long depth_b,
         long column_b
#if HAS_EPILOGUE
         , global const T_x *pc, long ac, Addend addend, Factors factors
#endif
         ) {
    local ACC tile_b[DEPTH * TILE_COLUMNS];
#if ITEMS > 1
    local ACC tile_a[DEPTH * TILE_ROWS];
#endif
    uint me = get_local_id(1) * COLUMN_ITEMS + get_local_id(0);
    long first_row = get_group_id(1) * TILE_ROWS, row = first_row + get_local_id(1) * ROWS;
    long first_column = get_group_id(0) * TILE_COLUMNS;
    long own = get_local_id(0) * ITEM_COLUMNS, column = first_column + own;
    ulong rest = get_group_id(2);
    pr += ar + (long)rest * rows * columns;
    for (int dim = batch.rank - 1; dim >= 0; dim--) {
        ulong size = batch.shape[dim], q = rest / size;
        long i = rest - q * size;
        rest = q;
        aa += i * batch.a[dim];
        ab += i * batch.b[dim];
#if HAS_EPILOGUE
        ac += i * batch.c[dim];
#endif
    }
    Numbers sums[ROWS][VECTORS];
    for (int i = 0; i < ROWS; i++) for (int v = 0; v < VECTORS; v++) sums[i][v].all = 0;
    // Rows below the last are computed as the last, and not stored.
    global const T_x *from[ROWS];
    for (int i = 0; i < ROWS; i++) from[i] = pa + aa + min(row + i, rows - 1) * row_a;
    for (long begin = 0; begin < depth; begin += DEPTH) {
        int steps = min(depth - begin, (long)DEPTH);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint at = me; at < DEPTH * TILE_COLUMNS / WIDTH; at += GROUP_ITEMS) {
            long k = begin + at / (TILE_COLUMNS / WIDTH);
            long first = first_column + at % (TILE_COLUMNS / WIDTH) * WIDTH;
            if (k >= depth) continue;
            global const T_x *p = pb + ab + k * depth_b + first * column_b;
            Numbers some;
            if (column_b == 1 && first + WIDTH <= columns) {
                some.all = VECTOR(CONVERT)(LOADV_x(p, 0));
            } else {
                for (int j = 0; j < WIDTH; j++) {
                    some.each[j] = first + j < columns ? (ACC)LOAD_x(p, j * column_b) : (ACC)0;
                }
            }
            VECTOR(vstore)(some.all, at, tile_b);
        }
#if ITEMS > 1
        for (uint at = me; at < DEPTH * TILE_ROWS; at += GROUP_ITEMS) {
            long k = begin + at % DEPTH, i = min(first_row + at / DEPTH, rows - 1);
            if (k < depth) {
                tile_a[at % DEPTH * TILE_ROWS + at / DEPTH] =
                    (ACC)LOAD_x(pa, aa + i * row_a + k * depth_a);
            }
        }
#endif
        barrier(CLK_LOCAL_MEM_FENCE);
        // The sums stay in registers as long as nobody waits.
        ACCV own_sums[ROWS][VECTORS];
        UNROLLED for (int i = 0; i < ROWS; i++) {
            UNROLLED for (int v = 0; v < VECTORS; v++) own_sums[i][v] = sums[i][v].all;
        }
        for (int k = 0; k < steps; k++) {
            ACCV b[VECTORS];
            UNROLLED for (int v = 0; v < VECTORS; v++) {
                b[v] = VECTOR(vload)(0, tile_b + k * TILE_COLUMNS + own + v * WIDTH);
            }
            UNROLLED for (int i = 0; i < ROWS; i++) {
#if ITEMS > 1
                ACC a = tile_a[k * TILE_ROWS + get_local_id(1) * ROWS + i];
#else
                ACC a = LOAD_x(from[i], (begin + k) * depth_a);
#endif
                UNROLLED for (int v = 0; v < VECTORS; v++) {
                    own_sums[i][v] = ADD_PRODUCT(own_sums[i][v], (ACCV)(a), b[v]);
                }
            }
        }
        UNROLLED for (int i = 0; i < ROWS; i++) {
            UNROLLED for (int v = 0; v < VECTORS; v++) sums[i][v].all = own_sums[i][v];
        }
    }
    for (int i = 0; i < ROWS && row + i < rows; i++) {
        for (int v = 0; v < VECTORS; v++) {
            long to = column + v * WIDTH;
            global T_r *r = pr + (row + i) * columns + to;
            for (int j = 0; j < WIDTH && to + j < columns; j++) {
                ACC sum = sums[i][v].each[j];
#if HAS_EPILOGUE
                sum = PRODUCT(factors.alpha, sum);
                if (addend.is_there) {
                    long at = ac + (row + i) * addend.row + (to + j) * addend.column;
                    ACC other = LOAD_x(pc, at);
                    sum = ADD_PRODUCT(sum, factors.beta, other);
                }
                sum = activated(sum);
#endif
                STORE_r(r, j, (C_x)sum);
            }
        }
    }
}
