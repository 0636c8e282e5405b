//! The arguments of kernels without strides: tensors whose elements lie one after another, and
//! the values of parameters.

use keyfold_plugin::{DeviceTensor, Error, Execution, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::Loop;
use crate::stream::Stream;
use crate::strided;
use crate::tensor::Place;
use crate::types::{Type, prelude};

/// A device, and the stream that a call is queued on.
pub type On<'a> = (&'a Device, &'a Stream);

/// A tensor, or a copy of it if its elements don't lie one after another.
pub struct Dense {
    pub place: Place,
    /// Keeps the copy until the kernels that use it are queued.
    copy: Option<Buffer>,
}

/// Returns the number of elements of a shape.
pub fn numel(shape: &[i64]) -> i64 {
    shape.iter().product()
}

/// Copies between a tensor, which is broadcast to a shape, and memory where the elements lie one after
/// another.
fn copy(
    on: On<'_>,
    (tensor, shape): (&DeviceTensor<'_, Buffer>, &[i64]),
    dense: Place,
    back: bool,
) -> Result<()> {
    let unit = match tensor.element_size() {
        1 => Type::U8,
        2 => Type::U16,
        4 => Type::U32,
        _ => Type::U64,
    };
    let lacking = shape.len() - tensor.shape().len();
    let mut over = Loop::<2>::new();
    for (dim, size) in shape.iter().enumerate() {
        let own = dim.checked_sub(lacking).filter(|own| tensor.shape()[*own] != 1);
        let step = own.map_or(0, |own| tensor.strides()[own]);
        let below = numel(&shape[dim + 1..]);
        over.push(*size, if back { [step, below] } else { [below, step] })?;
    }
    let [tensor, dense] = [Place::of(tensor)?, dense].map(|place| Place { dtype: unit, ..place });
    let (from, to) = if back { (dense, tensor) } else { (tensor, dense) };
    strided::copy(on, &over, from, to)
}

impl Dense {
    /// Returns the elements of an input.
    ///
    /// # Errors
    /// The device's.
    pub fn of(on: On<'_>, tensor: &DeviceTensor<'_, Buffer>) -> Result<Dense> {
        Dense::broadcast(on, tensor, tensor.shape())
    }

    /// Returns the elements of an input that is broadcast to a shape.
    ///
    /// # Errors
    /// The device's.
    pub fn broadcast(
        on: On<'_>,
        tensor: &DeviceTensor<'_, Buffer>,
        shape: &[i64],
    ) -> Result<Dense> {
        let dense = Dense::allocated(on, tensor, shape)?;
        if dense.copy.is_some() {
            copy(on, (tensor, shape), dense.place, false)?;
        }
        Ok(dense)
    }

    /// Returns the memory of an output, for [`Dense::finish`].
    ///
    /// # Errors
    /// The device's.
    pub fn output(on: On<'_>, tensor: &DeviceTensor<'_, Buffer>) -> Result<Dense> {
        Dense::allocated(on, tensor, tensor.shape())
    }

    fn allocated(on: On<'_>, tensor: &DeviceTensor<'_, Buffer>, shape: &[i64]) -> Result<Dense> {
        let place = Place::of(tensor)?;
        let count = numel(shape);
        if count == 0 || tensor.shape() == shape && tensor.is_contiguous() {
            return Ok(Dense { place, copy: None });
        }
        let memory = on.0.allocate(count.cast_unsigned() as usize * tensor.element_size())?;
        Ok(Dense { place: Place { memory: memory.handle, at: 0, ..place }, copy: Some(memory) })
    }

    /// Copies the elements to an output that they aren't in.
    ///
    /// # Errors
    /// The device's.
    pub fn finish(&self, on: On<'_>, tensor: &DeviceTensor<'_, Buffer>) -> Result<()> {
        match self.copy {
            None => Ok(()),
            Some(_) => copy(on, (tensor, tensor.shape()), self.place, true),
        }
    }

    /// Returns the two arguments of a kernel: the memory and the distance.
    pub fn args<'a>(&self) -> [Arg<'a>; 2] {
        self.place.args()
    }

    /// Returns the three arguments of a float tensor of a type that the kernel is told.
    pub fn any<'a>(&self) -> [Arg<'a>; 3] {
        let [memory, at] = self.args();
        [memory, at, Arg::I32(self.place.dtype as i32)]
    }
}

/// Returns the inputs of a call.
///
/// # Errors
/// The device's.
pub fn inputs(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<Vec<Dense>> {
    call.inputs().map(|tensor| Dense::of(on, &tensor)).collect()
}

/// Returns the memory of a call's outputs.
///
/// # Errors
/// The device's.
pub fn outputs(on: On<'_>, call: &Execution<'_, Buffer>) -> Result<Vec<Dense>> {
    call.outputs().map(|tensor| Dense::output(on, &tensor)).collect()
}

/// Finishes all outputs of a call.
///
/// # Errors
/// The device's.
pub fn finish(on: On<'_>, call: &Execution<'_, Buffer>, made: &[Dense]) -> Result<()> {
    call.outputs().zip(made).try_for_each(|(tensor, made)| made.finish(on, &tensor))
}

/// Returns whole numbers as a kernel's struct.
pub fn words(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// Returns numbers as a kernel's struct of the type that elements of a dtype are computed in.
pub fn reals(dtype: Type, numbers: &[f64]) -> Vec<u8> {
    match dtype {
        Type::F64 => numbers.iter().flat_map(|number| number.to_ne_bytes()).collect(),
        _ => numbers.iter().flat_map(|number| (*number as f32).to_ne_bytes()).collect(),
    }
}

/// Returns a program on floats `x`, which are computed in `ACC`.
pub fn source(device: &Device, dtype: Type, definitions: &str, body: &str) -> String {
    format!(
        "{}{}#define ACC {}\n#define HAS_FLOAT64 {}\n{}{definitions}{body}",
        prelude(device.float64),
        dtype.define("x", dtype),
        dtype.computed(),
        u8::from(device.float64),
        include_str!("kernels/floats.cl"),
    )
}

/// Refuses dtypes that aren't floats.
///
/// # Errors
/// The first of them.
pub fn floats(name: &str, dtypes: &[Type]) -> Result<()> {
    match dtypes.iter().find(|dtype| !dtype.is_float()) {
        None => Ok(()),
        Some(dtype) => Err(Error::not_supported(format!("its {name} has no {dtype:?}"))),
    }
}

/// Returns the error of an operation that a group has no kernel for.
pub fn unknown(group: &str, name: &str) -> Error {
    Error::not_supported(format!("it has no {name} of the group {group}"))
}
