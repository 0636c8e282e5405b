//! Operations and their calls.

use std::fmt;
use std::marker::PhantomData;

use super::fields::Fields;
use super::tensor::DeviceTensor;
use crate::abi::device::{
    self as abi, IndexParams, PointwiseParams, RandomParams, ReduceParams, RowParams, ScanParams,
};
use crate::abi::{DLDataType, DLTensor};
use crate::error::{Error, Result};
use crate::types::DType;

/// An operation with its dtypes.
pub struct Operation<'a>(&'a abi::Operation);

impl<'a> Operation<'a> {
    pub(super) fn new(operation: &'a abi::Operation) -> Self {
        Operation(operation)
    }

    /// Returns the name of the group.
    pub fn group(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.0.group.get() }
    }

    /// Returns the name of the operation in its group.
    pub fn name(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.0.name.get() }
    }

    /// Returns the dtypes of the inputs.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = DType> + 'a {
        let dtypes: &'a [DLDataType] = match self.0.inputs {
            0 => &[],
            // SAFETY: the host provides that many.
            count => unsafe { std::slice::from_raw_parts(self.0.input_dtypes, count as usize) },
        };
        dtypes.iter().map(|dtype| DType(*dtype))
    }

    /// Returns the dtype of the output, the first of several.
    pub fn output(&self) -> DType {
        DType(self.0.output)
    }

    /// Returns the dtypes of all outputs.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = DType> + 'a {
        let has_all = self.0.size as usize >= size_of::<abi::Operation>();
        let dtypes: &'a [DLDataType] = match has_all {
            false => std::slice::from_ref(&self.0.output),
            true if self.0.outputs == 0 => &[],
            // SAFETY: the host's struct has the field, and provides that many.
            true => unsafe {
                std::slice::from_raw_parts(self.0.output_dtypes, self.0.outputs as usize)
            },
        };
        dtypes.iter().map(|dtype| DType(*dtype))
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs: Vec<String> = self.inputs().map(|dtype| dtype.to_string()).collect();
        let outputs: Vec<String> = self.outputs().map(|dtype| dtype.to_string()).collect();
        write!(f, "{}({}) -> {}", self.name(), inputs.join(", "), outputs.join(", "))
    }
}

/// The parameters of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Params {
    /// Of the group `linalg`, of those whose parameters are [`Execution::fields`], and of groups
    /// that this version of the SDK doesn't know.
    None,
    /// Of the group `pointwise`.
    Pointwise {
        /// The fault code of the primitive `check`, for [`Error::fault`].
        fault: u32,
    },
    /// Of the group `reduce`.
    Reduce {
        /// Bit `d` is set if dimension `d` of the input is reduced; see [`dims`].
        dims: u64,
        /// Whether the output keeps the reduced dimensions with size 1.
        keepdim: bool,
    },
    /// Of the group `rows`.
    Rows {
        /// The dimension of the lanes.
        axis: usize,
    },
    /// Of the group `scan`.
    Scan {
        /// The dimension of the lanes.
        axis: usize,
    },
    /// Of the group `index`.
    Index {
        /// Bit `d` is set if dimension `d` has positions; see [`dims`].
        dims: u64,
        /// The index of the positions' first dimension in the output of `take` or in the values of
        /// `put` and `put_add`.
        at: usize,
    },
    /// Of the group `random`: a part of a Philox4x32-10 stream.
    Random {
        /// The seed, which selects the stream.
        seed: u64,
        /// The first block. Block `offset + i` makes elements `4 i` to `4 i + 3`, for float64
        /// elements `2 i` and `2 i + 1`.
        offset: u64,
    },
}

/// Returns the numbers of the bits that are set: `dims(0b101)` is 0, 2.
pub fn dims(bits: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).filter(move |dim| bits >> dim & 1 == 1)
}

/// A call of an operation.
pub struct Execution<'a, B> {
    call: &'a abi::Execution,
    buffers: PhantomData<&'a B>,
}

impl<'a, B> Execution<'a, B> {
    /// # Safety
    /// `call` is the host's, alive for `'a`, and the tensors' data are live handles of a `B`.
    pub(super) unsafe fn new(call: &'a abi::Execution) -> Self {
        Execution { call, buffers: PhantomData }
    }

    /// Returns the name of the group.
    pub fn group(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.call.group.get() }
    }

    /// Returns the name of the operation in its group.
    pub fn name(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.call.name.get() }
    }

    /// Returns the full name of the operator that is called, for late errors; empty for a backend
    /// that isn't asynchronous.
    pub fn operator(&self) -> &'a str {
        // SAFETY: text of the call.
        unsafe { self.call.operator.get() }
    }

    /// Returns the stream to queue the operation on.
    pub fn stream(&self) -> u32 {
        self.call.stream
    }

    /// Returns the parameters.
    pub fn params(&self) -> Params {
        let params = self.call.params;
        if params.is_null() {
            return Params::None;
        }
        // SAFETY: the host passes the struct of the group, which lives as long as the call.
        unsafe {
            match self.group() {
                "pointwise" => {
                    Params::Pointwise { fault: (*params.cast::<PointwiseParams>()).fault }
                }
                "reduce" => {
                    let ReduceParams { keepdim, dims, .. } = *params.cast();
                    Params::Reduce { dims, keepdim: keepdim != 0 }
                }
                "rows" => Params::Rows { axis: (*params.cast::<RowParams>()).axis as usize },
                "scan" => Params::Scan { axis: (*params.cast::<ScanParams>()).axis as usize },
                "index" => {
                    let IndexParams { at, dims, .. } = *params.cast();
                    Params::Index { dims, at: at as usize }
                }
                "random" => {
                    let RandomParams { seed, offset, .. } = *params.cast();
                    Params::Random { seed, offset }
                }
                _ => Params::None,
            }
        }
    }

    /// Returns the parameters of the groups of plugin ABI 1.2, under their names; none of other
    /// groups.
    pub fn fields(&self) -> Fields<'a> {
        let group = self.group();
        let mut groups = abi::GROUPS.iter().filter(|(bit, _)| bit & abi::GROUPS_OF_FIELDS != 0);
        match groups.any(|(_, name)| *name == group) {
            // SAFETY: the host passes this struct for these groups, alive as long as the call.
            true => unsafe { Fields::new(self.call.params.cast()) },
            false => Fields::default(),
        }
    }

    fn tensor(&self, role: &str, index: usize, first: u32, count: u32) -> Result<&'a DLTensor> {
        if index >= count as usize {
            let name = self.name();
            return Err(Error::value(format!("{name} has {count} {role}s; there is no {index}")));
        }
        // SAFETY: the host provides inputs and outputs one after another.
        Ok(unsafe { &*self.call.tensors.add(first as usize + index) })
    }

    /// Returns an input.
    ///
    /// # Errors
    /// An index out of range.
    pub fn input(&self, index: usize) -> Result<DeviceTensor<'a, B>> {
        let dl = self.tensor("input", index, 0, self.call.inputs)?;
        // SAFETY: the contract of `new`.
        Ok(unsafe { DeviceTensor::new(dl) })
    }

    /// Returns all inputs.
    pub fn inputs(&self) -> impl Iterator<Item = DeviceTensor<'a, B>> + '_ {
        (0..self.call.inputs as usize).map_while(|index| self.input(index).ok())
    }

    /// Returns an output.
    ///
    /// # Errors
    /// An index out of range.
    pub fn output(&self, index: usize) -> Result<DeviceTensor<'a, B>> {
        let dl = self.tensor("output", index, self.call.inputs, self.call.outputs)?;
        // SAFETY: the contract of `new`.
        Ok(unsafe { DeviceTensor::new(dl) })
    }

    /// Returns all outputs.
    pub fn outputs(&self) -> impl Iterator<Item = DeviceTensor<'a, B>> + '_ {
        (0..self.output_count()).map_while(|index| self.output(index).ok())
    }

    /// Returns the number of outputs: 1, except for `positions` and the groups of plugin ABI 1.2.
    pub fn output_count(&self) -> usize {
        self.call.outputs as usize
    }
}

impl<B> fmt::Debug for Execution<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Execution({}, {:?})", self.name(), self.params())
    }
}
