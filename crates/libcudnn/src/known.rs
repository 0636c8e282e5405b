//! Names of engines' knobs and notes, by their numbers.
//!
//! Numbers of later versions have no name here, and stay numbers.

use std::fmt::Debug;

use cudarc::cudnn::sys::{
    cudnnBackendBehaviorNote_t as B, cudnnBackendKnobType_t as K, cudnnBackendNumericalNote_t as N,
};

/// Returns the name of a note on numbers.
pub(crate) fn numerical_note(code: i32) -> String {
    named(NUMERICAL.iter().find(|note| **note as i32 == code), "CUDNN_NUMERICAL_NOTE_", code)
}

/// Returns the name of a note on behaviour.
pub(crate) fn behavior_note(code: i32) -> String {
    named(BEHAVIOR.iter().find(|note| **note as i32 == code), "CUDNN_BEHAVIOR_NOTE_", code)
}

/// Returns the name of a knob.
pub(crate) fn knob(code: i32) -> String {
    named(KNOBS.iter().find(|knob| **knob as i32 == code), "CUDNN_KNOB_TYPE_", code)
}

fn named(found: Option<&impl Debug>, prefix: &str, code: i32) -> String {
    match found {
        Some(found) => format!("{found:?}").trim_start_matches(prefix).to_string(),
        None => code.to_string(),
    }
}

/// Notes on numbers.
const NUMERICAL: [N; 10] = [
    N::CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
    N::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
    N::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
    N::CUDNN_NUMERICAL_NOTE_FFT,
    N::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
    N::CUDNN_NUMERICAL_NOTE_WINOGRAD,
    N::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
    N::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
    N::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13,
    N::CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP,
];

/// Notes on behaviour.
const BEHAVIOR: [B; 5] = [
    B::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION,
    B::CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER,
    B::CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER,
    B::CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API,
    B::CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY,
];

/// Knobs.
const KNOBS: [K; 44] = [
    K::CUDNN_KNOB_TYPE_SPLIT_K,
    K::CUDNN_KNOB_TYPE_SWIZZLE,
    K::CUDNN_KNOB_TYPE_TILE_SIZE,
    K::CUDNN_KNOB_TYPE_USE_TEX,
    K::CUDNN_KNOB_TYPE_EDGE,
    K::CUDNN_KNOB_TYPE_KBLOCK,
    K::CUDNN_KNOB_TYPE_LDGA,
    K::CUDNN_KNOB_TYPE_LDGB,
    K::CUDNN_KNOB_TYPE_CHUNK_K,
    K::CUDNN_KNOB_TYPE_SPLIT_H,
    K::CUDNN_KNOB_TYPE_WINO_TILE,
    K::CUDNN_KNOB_TYPE_MULTIPLY,
    K::CUDNN_KNOB_TYPE_SPLIT_K_BUF,
    K::CUDNN_KNOB_TYPE_TILEK,
    K::CUDNN_KNOB_TYPE_STAGES,
    K::CUDNN_KNOB_TYPE_REDUCTION_MODE,
    K::CUDNN_KNOB_TYPE_CTA_SPLIT_K_MODE,
    K::CUDNN_KNOB_TYPE_SPLIT_K_SLC,
    K::CUDNN_KNOB_TYPE_IDX_MODE,
    K::CUDNN_KNOB_TYPE_SLICED,
    K::CUDNN_KNOB_TYPE_SPLIT_RS,
    K::CUDNN_KNOB_TYPE_SINGLEBUFFER,
    K::CUDNN_KNOB_TYPE_LDGC,
    K::CUDNN_KNOB_TYPE_SPECFILT,
    K::CUDNN_KNOB_TYPE_KERNEL_CFG,
    K::CUDNN_KNOB_TYPE_WORKSPACE,
    K::CUDNN_KNOB_TYPE_TILE_CGA,
    K::CUDNN_KNOB_TYPE_TILE_CGA_M,
    K::CUDNN_KNOB_TYPE_TILE_CGA_N,
    K::CUDNN_KNOB_TYPE_BLOCK_SIZE,
    K::CUDNN_KNOB_TYPE_OCCUPANCY,
    K::CUDNN_KNOB_TYPE_ARRAY_SIZE_PER_THREAD,
    K::CUDNN_KNOB_TYPE_NUM_C_PER_BLOCK,
    K::CUDNN_KNOB_TYPE_SPLIT_COLS,
    K::CUDNN_KNOB_TYPE_TILE_ROWS,
    K::CUDNN_KNOB_TYPE_TILE_COLS,
    K::CUDNN_KNOB_TYPE_LOAD_SIZE,
    K::CUDNN_KNOB_TYPE_CTA_COUNT,
    K::CUDNN_KNOB_TYPE_STREAM_K,
    K::CUDNN_KNOB_TYPE_SPLIT_P_SLC,
    K::CUDNN_KNOB_TYPE_TILE_M,
    K::CUDNN_KNOB_TYPE_TILE_N,
    K::CUDNN_KNOB_TYPE_WARP_SPEC_CFG,
    K::CUDNN_KNOB_TYPE_SWAP_AB,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_names_and_unknown_ones_stay() {
        assert_eq!(numerical_note(4), "NONDETERMINISTIC");
        assert_eq!(behavior_note(0), "RUNTIME_COMPILATION");
        assert_eq!(knob(2), "TILE_SIZE");
        assert_eq!(knob(9999), "9999");
    }
}
