// The sizes and strides of an input that is read at computed indices.
typedef struct {
    $I64 size[$RANK];
    $I64 stride[$RANK];
} kf_ranked$RANK;
