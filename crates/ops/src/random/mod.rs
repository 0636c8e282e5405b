//! Random numbers: the operators that draw from the stream of their device, see
//! [`keyfold_tensor::device::random`].

mod dropout;
mod kernels;

pub(crate) use kernels::register;
