//! The numbers of cuDNN's enums for those of keyfold's.

use cudarc::cudnn::sys as c;
use keyfold_cudnn::{
    ConvolutionMode, DataType, NormMode, NormPhase, PaddingMode, PointwiseMode, ReductionMode,
    ResampleMode,
};

use crate::names::FLOOR_MOD;

/// Returns the number of a dtype. A bool is a byte here; cuDNN's BOOLEAN is what its kernels take.
pub(crate) fn dtype(dtype: DataType) -> i32 {
    use c::cudnnDataType_t as D;
    let code = match dtype {
        DataType::F32 => D::CUDNN_DATA_FLOAT,
        DataType::F64 => D::CUDNN_DATA_DOUBLE,
        DataType::F16 => D::CUDNN_DATA_HALF,
        DataType::BF16 => D::CUDNN_DATA_BFLOAT16,
        DataType::I8 => D::CUDNN_DATA_INT8,
        DataType::U8 => D::CUDNN_DATA_UINT8,
        DataType::I32 => D::CUDNN_DATA_INT32,
        DataType::I64 => D::CUDNN_DATA_INT64,
        DataType::Bool => D::CUDNN_DATA_BOOLEAN,
        DataType::E4M3 => D::CUDNN_DATA_FP8_E4M3,
        DataType::E5M2 => D::CUDNN_DATA_FP8_E5M2,
    };
    code as i32
}

pub(super) fn pointwise(mode: PointwiseMode) -> i32 {
    use PointwiseMode as M;
    use c::cudnnPointwiseMode_t as P;
    let code = match mode {
        M::FloorMod => return FLOOR_MOD,
        M::Identity => P::CUDNN_POINTWISE_IDENTITY,
        M::Abs => P::CUDNN_POINTWISE_ABS,
        M::Ceil => P::CUDNN_POINTWISE_CEIL,
        M::Cos => P::CUDNN_POINTWISE_COS,
        M::Erf => P::CUDNN_POINTWISE_ERF,
        M::Exp => P::CUDNN_POINTWISE_EXP,
        M::Floor => P::CUDNN_POINTWISE_FLOOR,
        M::Log => P::CUDNN_POINTWISE_LOG,
        M::Neg => P::CUDNN_POINTWISE_NEG,
        M::Reciprocal => P::CUDNN_POINTWISE_RECIPROCAL,
        M::Rsqrt => P::CUDNN_POINTWISE_RSQRT,
        M::Sin => P::CUDNN_POINTWISE_SIN,
        M::Sqrt => P::CUDNN_POINTWISE_SQRT,
        M::Tan => P::CUDNN_POINTWISE_TAN,
        M::LogicalNot => P::CUDNN_POINTWISE_LOGICAL_NOT,
        M::Relu => P::CUDNN_POINTWISE_RELU_FWD,
        M::Tanh => P::CUDNN_POINTWISE_TANH_FWD,
        M::Sigmoid => P::CUDNN_POINTWISE_SIGMOID_FWD,
        M::Elu => P::CUDNN_POINTWISE_ELU_FWD,
        M::Gelu => P::CUDNN_POINTWISE_GELU_FWD,
        M::GeluApproxTanh => P::CUDNN_POINTWISE_GELU_APPROX_TANH_FWD,
        M::Softplus => P::CUDNN_POINTWISE_SOFTPLUS_FWD,
        M::Swish => P::CUDNN_POINTWISE_SWISH_FWD,
        M::GenIndex => P::CUDNN_POINTWISE_GEN_INDEX,
        M::Add => P::CUDNN_POINTWISE_ADD,
        M::AddSquare => P::CUDNN_POINTWISE_ADD_SQUARE,
        M::Sub => P::CUDNN_POINTWISE_SUB,
        M::Mul => P::CUDNN_POINTWISE_MUL,
        M::Div => P::CUDNN_POINTWISE_DIV,
        M::Max => P::CUDNN_POINTWISE_MAX,
        M::Min => P::CUDNN_POINTWISE_MIN,
        M::Mod => P::CUDNN_POINTWISE_MOD,
        M::Pow => P::CUDNN_POINTWISE_POW,
        M::Atan2 => P::CUDNN_POINTWISE_ATAN2,
        M::CmpEq => P::CUDNN_POINTWISE_CMP_EQ,
        M::CmpNeq => P::CUDNN_POINTWISE_CMP_NEQ,
        M::CmpGt => P::CUDNN_POINTWISE_CMP_GT,
        M::CmpGe => P::CUDNN_POINTWISE_CMP_GE,
        M::CmpLt => P::CUDNN_POINTWISE_CMP_LT,
        M::CmpLe => P::CUDNN_POINTWISE_CMP_LE,
        M::LogicalAnd => P::CUDNN_POINTWISE_LOGICAL_AND,
        M::LogicalOr => P::CUDNN_POINTWISE_LOGICAL_OR,
        M::BinarySelect => P::CUDNN_POINTWISE_BINARY_SELECT,
        M::ReluBackward => P::CUDNN_POINTWISE_RELU_BWD,
        M::TanhBackward => P::CUDNN_POINTWISE_TANH_BWD,
        M::SigmoidBackward => P::CUDNN_POINTWISE_SIGMOID_BWD,
        M::EluBackward => P::CUDNN_POINTWISE_ELU_BWD,
        M::GeluBackward => P::CUDNN_POINTWISE_GELU_BWD,
        M::GeluApproxTanhBackward => P::CUDNN_POINTWISE_GELU_APPROX_TANH_BWD,
        M::SoftplusBackward => P::CUDNN_POINTWISE_SOFTPLUS_BWD,
        M::SwishBackward => P::CUDNN_POINTWISE_SWISH_BWD,
    };
    code as i32
}

pub(super) fn convolution(mode: ConvolutionMode) -> i32 {
    match mode {
        ConvolutionMode::CrossCorrelation => {
            c::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as i32
        }
        ConvolutionMode::Convolution => c::cudnnConvolutionMode_t::CUDNN_CONVOLUTION as i32,
    }
}

pub(super) fn reduction(mode: ReductionMode) -> i32 {
    use c::cudnnReduceTensorOp_t as R;
    let code = match mode {
        ReductionMode::Add => R::CUDNN_REDUCE_TENSOR_ADD,
        ReductionMode::Mul => R::CUDNN_REDUCE_TENSOR_MUL,
        ReductionMode::MulNoZeros => R::CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS,
        ReductionMode::Min => R::CUDNN_REDUCE_TENSOR_MIN,
        ReductionMode::Max => R::CUDNN_REDUCE_TENSOR_MAX,
        ReductionMode::Amax => R::CUDNN_REDUCE_TENSOR_AMAX,
        ReductionMode::Avg => R::CUDNN_REDUCE_TENSOR_AVG,
        ReductionMode::Norm1 => R::CUDNN_REDUCE_TENSOR_NORM1,
        ReductionMode::Norm2 => R::CUDNN_REDUCE_TENSOR_NORM2,
    };
    code as i32
}

pub(super) fn resample(mode: ResampleMode) -> i32 {
    use c::cudnnResampleMode_t as R;
    let code = match mode {
        ResampleMode::Maxpool => R::CUDNN_RESAMPLE_MAXPOOL,
        // The name without "INCLUDE_PADDING" is cudarc's for the same number.
        ResampleMode::AvgpoolIncludePadding => R::CUDNN_RESAMPLE_AVGPOOL,
        ResampleMode::AvgpoolExcludePadding => R::CUDNN_RESAMPLE_AVGPOOL_EXCLUDE_PADDING,
        ResampleMode::Bilinear => R::CUDNN_RESAMPLE_BILINEAR,
        ResampleMode::Nearest => R::CUDNN_RESAMPLE_NEAREST,
    };
    code as i32
}

pub(super) fn padding(mode: PaddingMode) -> i32 {
    use c::cudnnPaddingMode_t as P;
    let code = match mode {
        PaddingMode::Zero => P::CUDNN_ZERO_PAD,
        PaddingMode::NegInf => P::CUDNN_NEG_INF_PAD,
        PaddingMode::EdgeValue => P::CUDNN_EDGE_VAL_PAD,
    };
    code as i32
}

pub(super) fn norm(mode: NormMode) -> i32 {
    use c::cudnnBackendNormMode_t as N;
    let code = match mode {
        NormMode::LayerNorm => N::CUDNN_LAYER_NORM,
        NormMode::InstanceNorm => N::CUDNN_INSTANCE_NORM,
        NormMode::BatchNorm => N::CUDNN_BATCH_NORM,
        NormMode::GroupNorm => N::CUDNN_GROUP_NORM,
        NormMode::RmsNorm => N::CUDNN_RMS_NORM,
        NormMode::AdaLayerNorm => N::CUDNN_ADA_LAYER_NORM,
    };
    code as i32
}

pub(super) fn phase(phase: NormPhase) -> i32 {
    use c::cudnnBackendNormFwdPhase_t as P;
    match phase {
        NormPhase::Inference => P::CUDNN_NORM_FWD_INFERENCE as i32,
        // A persistent kernel is an engine's choice.
        NormPhase::Training | NormPhase::PersistentTraining => P::CUDNN_NORM_FWD_TRAINING as i32,
    }
}
