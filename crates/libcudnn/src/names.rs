//! The numbers of attributes, kinds of descriptors and types, with what each attribute takes in its type.
//!
//! They are cudarc's, cast to integers; the last part has those of later headers that cudarc 0.19 lacks.

use std::marker::PhantomData;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as T,
    cudnnBackendDescriptorType_t as D,
};

use crate::descriptor::Finalized;

/// An attribute of a descriptor, which takes values of type `V`.
pub(crate) struct Attribute<V: ?Sized> {
    pub(crate) code: i32,
    pub(crate) name: &'static str,
    /// The type's number where the values are of an enum.
    pub(crate) choice: i32,
    value: PhantomData<V>,
}

impl<V: ?Sized> Clone for Attribute<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for Attribute<V> {}

/// A value of an enum.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {}

const fn attribute<V: ?Sized>(code: i32, name: &'static str, choice: i32) -> Attribute<V> {
    Attribute { code, name, choice, value: PhantomData }
}

/// A kind of descriptor; several of cuDNN's are one where they are used alike.
pub(crate) struct Kind<K> {
    pub(crate) code: i32,
    pub(crate) name: &'static str,
    kind: PhantomData<K>,
}

impl<K> Clone for Kind<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Kind<K> {}

const fn kind<K>(code: i32, name: &'static str) -> Kind<K> {
    Kind { code, name, kind: PhantomData }
}

/// The types of descriptors.
pub(crate) trait Kinds {}

/// Declares constants by cudarc's names: a function can't make a name of an enum's variant into a constant's.
macro_rules! declare {
    (attributes of $type:ty, $choice:expr => $($name:ident),* $(,)?) => {
        $(pub(crate) const $name: Attribute<$type> = attribute(A::$name as i32, stringify!($name), $choice as i32);)*
    };
    (kinds of $type:ty => $($name:ident),* $(,)?) => {
        $(pub(crate) const $name: Kind<$type> = kind(D::$name as i32, stringify!($name));)*
    };
}

/// A tensor of a graph.
#[derive(Debug)]
pub(crate) struct Tensor;
/// The attributes of an operation beside its tensors: a convolution's padding, a reduction's function.
#[derive(Debug)]
pub(crate) struct Parameters;
/// An operation of a graph.
#[derive(Debug)]
pub(crate) struct Operation;
/// Operations and the tensors between them.
#[derive(Debug)]
pub struct OperationGraph;
/// A ranking of engines.
#[derive(Debug)]
pub(crate) struct Heuristics;
/// An engine with its knobs.
#[derive(Debug)]
pub(crate) struct EngineConfig;
/// An engine of a graph.
#[derive(Debug)]
pub(crate) struct Engine;
/// A knob's value.
#[derive(Debug)]
pub(crate) struct KnobChoice;
/// The properties of a card, present or not.
#[derive(Debug)]
pub struct DeviceProperties;
/// A compiled plan.
#[derive(Debug)]
pub(crate) struct ExecutionPlan;
/// The memory of a run.
#[derive(Debug)]
pub(crate) struct VariantPack;

impl Kinds for Tensor {}
impl Kinds for Parameters {}
impl Kinds for Operation {}
impl Kinds for OperationGraph {}
impl Kinds for Heuristics {}
impl Kinds for EngineConfig {}
impl Kinds for Engine {}
impl Kinds for KnobChoice {}
impl Kinds for DeviceProperties {}
impl Kinds for ExecutionPlan {}
impl Kinds for VariantPack {}

declare! {
    attributes of i64, 0 =>
        CUDNN_ATTR_POINTWISE_AXIS, CUDNN_ATTR_CONVOLUTION_DILATIONS,
        CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
        CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS,
        CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
        CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS,
        CUDNN_ATTR_RESAMPLE_POST_PADDINGS, CUDNN_ATTR_RESAMPLE_PRE_PADDINGS,
        CUDNN_ATTR_RESAMPLE_STRIDES, CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, CUDNN_ATTR_OPERATION_CONCAT_AXIS,
        CUDNN_ATTR_OPERATION_CONCAT_INPLACE_INDEX, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID,
        CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID,
        CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
        CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
        CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS
}

declare! {
    attributes of f32, 0 =>
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1,
        CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_PROBABILITY
}

declare! {
    attributes of f64, 0 =>
        CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP,
        CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_ATTR_POINTWISE_ELU_ALPHA,
        CUDNN_ATTR_POINTWISE_SOFTPLUS_BETA, CUDNN_ATTR_POINTWISE_SWISH_BETA
}

declare! {
    attributes of bool, 0 =>
        CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_ATTR_TENSOR_IS_BY_VALUE
}

declare! {
    attributes of i32, 0 =>
        CUDNN_ATTR_DEVICEPROP_DEVICE_ID
}

declare! {
    attributes of str, 0 =>
        CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION
}

declare! {
    attributes of crate::library::Handle, 0 =>
        CUDNN_ATTR_EXECUTION_PLAN_HANDLE
}

declare! {
    attributes of *mut std::ffi::c_void, 0 =>
        CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_ATTR_VARIANT_PACK_WORKSPACE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_DATA_TYPE =>
        CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
        CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_ATTR_RESAMPLE_COMP_TYPE,
        CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_POINTWISE_MODE =>
        CUDNN_ATTR_POINTWISE_MODE, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_CONVOLUTION_MODE =>
        CUDNN_ATTR_CONVOLUTION_CONV_MODE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE =>
        CUDNN_ATTR_REDUCTION_OPERATOR
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_RESAMPLE_MODE =>
        CUDNN_ATTR_RESAMPLE_MODE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_NAN_PROPOGATION =>
        CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_PADDING_MODE =>
        CUDNN_ATTR_RESAMPLE_PADDING_MODE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_NORM_MODE =>
        CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_ATTR_OPERATION_NORM_BWD_MODE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_NORM_FWD_PHASE =>
        CUDNN_ATTR_OPERATION_NORM_FWD_PHASE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_GENSTATS_MODE =>
        CUDNN_ATTR_OPERATION_GENSTATS_MODE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_MOE_GROUPED_MATMUL_MODE =>
        CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_HEUR_MODE =>
        CUDNN_ATTR_ENGINEHEUR_MODE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_KNOB_TYPE =>
        CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_NUMERICAL_NOTE =>
        CUDNN_ATTR_ENGINE_NUMERICAL_NOTE
}

declare! {
    attributes of Choice, T::CUDNN_TYPE_BEHAVIOR_NOTE =>
        CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE
}

declare! {
    attributes of Finalized<Tensor>, 0 =>
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, CUDNN_ATTR_OPERATION_GENSTATS_XDESC,
        CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC,
        CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
        CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
        CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
        CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
        CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC,
        CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC,
        CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC,
        CUDNN_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC,
        CUDNN_ATTR_OPERATION_RESAMPLE_BWD_YDESC, CUDNN_ATTR_OPERATION_CONCAT_INPUT_DESCS,
        CUDNN_ATTR_OPERATION_CONCAT_OUTPUT_DESC, CUDNN_ATTR_OPERATION_NORM_FWD_XDESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, CUDNN_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC, CUDNN_ATTR_OPERATION_NORM_FWD_YDESC,
        CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC,
        CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC,
        CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, CUDNN_ATTR_OPERATION_NORM_BWD_EPSILON_DESC,
        CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC,
        CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
        CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_ATTR_OPERATION_SOFTMAX_XDESC,
        CUDNN_ATTR_OPERATION_SOFTMAX_YDESC, CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC,
        CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC,
        CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC,
        CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC,
        CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC,
        CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC,
        CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_SEED_DESC,
        CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_OFFSET_DESC
}

declare! {
    attributes of Finalized<Parameters>, 0 =>
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC,
        CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC,
        CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC
}

declare! {
    attributes of Finalized<Operation>, 0 =>
        CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC
}

declare! {
    attributes of Finalized<OperationGraph>, 0 =>
        CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
        CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH
}

declare! {
    attributes of Finalized<EngineConfig>, 0 =>
        CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG
}

declare! {
    attributes of Finalized<Engine>, 0 =>
        CUDNN_ATTR_ENGINECFG_ENGINE
}

declare! {
    attributes of Finalized<KnobChoice>, 0 =>
        CUDNN_ATTR_ENGINECFG_KNOB_CHOICES
}

declare! {
    attributes of Finalized<DeviceProperties>, 0 =>
        CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_ATTR_ENGINE_DEVICEPROP,
        CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
}

declare! {
    kinds of Tensor =>
        CUDNN_BACKEND_TENSOR_DESCRIPTOR
}

declare! {
    kinds of Parameters =>
        CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
        CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
        CUDNN_BACKEND_RESAMPLE_DESCRIPTOR
}

declare! {
    kinds of Operation =>
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR, CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR
}

declare! {
    kinds of OperationGraph =>
        CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR
}

declare! {
    kinds of Heuristics =>
        CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR
}

declare! {
    kinds of EngineConfig =>
        CUDNN_BACKEND_ENGINECFG_DESCRIPTOR
}

declare! {
    kinds of Engine =>
        CUDNN_BACKEND_ENGINE_DESCRIPTOR
}

declare! {
    kinds of KnobChoice =>
        CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR
}

declare! {
    kinds of DeviceProperties =>
        CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR
}

declare! {
    kinds of ExecutionPlan =>
        CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
}

declare! {
    kinds of VariantPack =>
        CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR
}

/// The types of attributes that aren't an enum's.
pub(crate) mod types {
    use super::T;

    pub(crate) const HANDLE: i32 = T::CUDNN_TYPE_HANDLE as i32;
    pub(crate) const BOOLEAN: i32 = T::CUDNN_TYPE_BOOLEAN as i32;
    pub(crate) const INT64: i32 = T::CUDNN_TYPE_INT64 as i32;
    pub(crate) const INT32: i32 = T::CUDNN_TYPE_INT32 as i32;
    pub(crate) const FLOAT: i32 = T::CUDNN_TYPE_FLOAT as i32;
    pub(crate) const DOUBLE: i32 = T::CUDNN_TYPE_DOUBLE as i32;
    pub(crate) const VOID_PTR: i32 = T::CUDNN_TYPE_VOID_PTR as i32;
    pub(crate) const BACKEND_DESCRIPTOR: i32 = T::CUDNN_TYPE_BACKEND_DESCRIPTOR as i32;
    pub(crate) const CHAR: i32 = T::CUDNN_TYPE_CHAR as i32;
    pub(crate) const FRACTION: i32 = T::CUDNN_TYPE_FRACTION as i32;
}

// Of cudnn_graph.h 9.27, which cudarc 0.19 has no names for.

const fn later<V: ?Sized>(code: i32, name: &'static str) -> Attribute<V> {
    attribute(code, name, 0)
}

/// The slices, whose descriptor is there since 9.2x.
pub(crate) const OPERATION_SLICE: Kind<Operation> = kind(47, "OPERATION_SLICE");
pub(crate) const SLICE_X: Attribute<Finalized<Tensor>> = later(3300, "OPERATION_SLICE_XDESC");
pub(crate) const SLICE_Y: Attribute<Finalized<Tensor>> = later(3301, "OPERATION_SLICE_YDESC");
pub(crate) const SLICE_START: Attribute<i64> = later(3302, "OPERATION_SLICE_START_INDICES");
pub(crate) const SLICE_LIMIT: Attribute<i64> = later(3303, "OPERATION_SLICE_LIMIT_INDICES");
pub(crate) const SLICE_STRIDES: Attribute<i64> = later(3304, "OPERATION_SLICE_STRIDES");

pub(crate) const OPERATION_TRANSPOSE: Kind<Operation> = kind(46, "OPERATION_TRANSPOSE");
pub(crate) const TRANSPOSE_X: Attribute<Finalized<Tensor>> =
    later(3200, "OPERATION_TRANSPOSE_XDESC");
pub(crate) const TRANSPOSE_Y: Attribute<Finalized<Tensor>> =
    later(3201, "OPERATION_TRANSPOSE_YDESC");
pub(crate) const TRANSPOSE_PERMUTATION: Attribute<i64> =
    later(3202, "OPERATION_TRANSPOSE_PERMUTATION");

/// The scales of 8-bit attention.
pub(crate) const SDPA_DESCALE_Q: Attribute<Finalized<Tensor>> =
    later(2822, "OPERATION_SDPA_FWD_DESCALE_QDESC");
pub(crate) const SDPA_DESCALE_K: Attribute<Finalized<Tensor>> =
    later(2823, "OPERATION_SDPA_FWD_DESCALE_KDESC");
pub(crate) const SDPA_DESCALE_V: Attribute<Finalized<Tensor>> =
    later(2824, "OPERATION_SDPA_FWD_DESCALE_VDESC");
pub(crate) const SDPA_DESCALE_S: Attribute<Finalized<Tensor>> =
    later(2825, "OPERATION_SDPA_FWD_DESCALE_SDESC");
pub(crate) const SDPA_SCALE_S: Attribute<Finalized<Tensor>> =
    later(2826, "OPERATION_SDPA_FWD_SCALE_SDESC");
pub(crate) const SDPA_SCALE_O: Attribute<Finalized<Tensor>> =
    later(2827, "OPERATION_SDPA_FWD_SCALE_ODESC");
pub(crate) const SDPA_AMAX_S: Attribute<Finalized<Tensor>> =
    later(2828, "OPERATION_SDPA_FWD_AMAX_SDESC");
pub(crate) const SDPA_AMAX_O: Attribute<Finalized<Tensor>> =
    later(2829, "OPERATION_SDPA_FWD_AMAX_ODESC");

/// The mode FLOOR_MOD of pointwise operations.
pub(crate) const FLOOR_MOD: i32 = 24;
