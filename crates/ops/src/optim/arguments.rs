//! The checks of a step's arguments, all of which come before anything is written.

use keyfold_backend::OptimParams;
use keyfold_core::{DType, ErrorKind, Result};
use keyfold_tensor::{Overlap, Tensor, ValueRef, overlap};
use smallvec::SmallVec;

use crate::op::Op;
use crate::pointwise::check_apart;

/// The tensors that a step writes to, with their names: the parameters, then the state.
pub(super) struct Written<'a>(SmallVec<[(&'static str, &'a Tensor); 4]>);

impl<'a> Written<'a> {
    /// # Errors
    /// [`ErrorKind::DType`] for parameters that aren't floats of these dtypes.
    pub(super) fn new(
        op: &Op,
        (name, arg): (&'static str, ValueRef<'a>),
        dtypes: &[DType],
    ) -> Result<Self> {
        let param = arg.tensor()?;
        if !dtypes.contains(&param.dtype()) {
            return Err(op.unsupported(name, param.dtype(), dtypes));
        }
        Ok(Written(SmallVec::from_iter([(name, param)])))
    }

    /// Returns the tensors.
    pub(super) fn tensors(&self) -> SmallVec<[&'a Tensor; 4]> {
        self.0.iter().map(|(_, tensor)| *tensor).collect()
    }

    /// Adds a buffer of the state, which may be absent. Returns whether it is there.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] unless it has the parameters' dtype, or float32 beside halves, as all buffers.
    pub(super) fn add_state(
        &mut self,
        op: &Op,
        name: &'static str,
        arg: ValueRef<'a>,
    ) -> Result<bool> {
        if matches!(arg, ValueRef::None) {
            return Ok(false);
        }
        let (state, own) = (arg.tensor()?, self.0[0].1.dtype());
        let (given, is_half) = (state.dtype(), matches!(own, DType::F16 | DType::BF16));
        let wanted = match self.0.get(1) {
            Some((_, first)) => first.dtype(),
            None if is_half && given == DType::F32 => DType::F32,
            None => own,
        };
        if given != wanted {
            let or_wide =
                if is_half && self.0.len() == 1 { ", or float32 for all state" } else { "" };
            let message = format!(
                "argument '{name}' is {given}; beside parameters of {own} it has to be {wanted}\
                 {or_wide}; convert it with aten::to"
            );
            return Err(op.error(ErrorKind::DType, message));
        }
        self.0.push((name, state));
        Ok(true)
    }

    /// Checks the gradient against the parameters, and all tensors against each other.
    ///
    /// # Errors
    /// [`ErrorKind::DType`], [`ErrorKind::Shape`] and [`ErrorKind::Device`] for tensors that don't fit the
    /// parameters, [`ErrorKind::ReadOnly`] for memory that can't be written, and [`ErrorKind::Value`] for
    /// written tensors that share memory.
    pub(super) fn check(&self, op: &Op, (name, grad): (&str, &Tensor)) -> Result<()> {
        let param = self.0[0].1;
        if grad.dtype() != param.dtype() {
            let message = format!(
                "argument '{name}' is {}, but the parameters are {}; convert it with aten::to",
                grad.dtype(),
                param.dtype()
            );
            return Err(op.error(ErrorKind::DType, message));
        }
        let others = self.0[1..].iter().copied().chain([(name, grad)]);
        for (name, tensor) in others {
            if tensor.shape() != param.shape() {
                let message = format!(
                    "argument '{name}' has shape {:?}, but the parameters have {:?}; give one of the \
                     same shape",
                    tensor.shape(),
                    param.shape()
                );
                return Err(op.error(ErrorKind::Shape, message));
            }
            if tensor.device() != param.device() {
                let message = format!(
                    "argument '{name}' is on {}, but the parameters are on {}; move it with .to()",
                    tensor.device(),
                    param.device()
                );
                return Err(op.error(ErrorKind::Device, message));
            }
        }
        for (at, (name, tensor)) in self.0.iter().enumerate() {
            check_apart(op.name, name, tensor)?;
            if !op.is_meta() {
                op.at_argument(name, tensor.check_writable())?;
            }
            for (other, read) in self.0[..at].iter().copied().chain([("grad", grad)]) {
                if op.at(overlap(tensor, read))? != Overlap::None {
                    let message = format!(
                        "arguments '{name}' and '{other}' share memory, and '{name}' is written; give \
                         each memory of its own (clone())"
                    );
                    return Err(op.error(ErrorKind::Value, message));
                }
            }
        }
        Ok(())
    }
}

/// The numbers among a step's arguments, by their places.
pub(super) struct Numbers<'o, 'a> {
    pub(super) op: &'o Op,
    pub(super) args: &'o [ValueRef<'a>],
}

impl Numbers<'_, '_> {
    fn number(&self, place: usize) -> f64 {
        self.args[place].scalar().map_or(f64::NAN, keyfold_core::Scalar::as_f64)
    }

    fn checked(&self, name: &str, place: usize, fits: bool, wanted: &str) -> Result<f64> {
        let given = self.number(place);
        if fits {
            return Ok(given);
        }
        let message = format!("argument '{name}' is {given}; it has to be {wanted}");
        Err(self.op.error(ErrorKind::Value, message))
    }

    /// # Errors
    /// As all methods, [`ErrorKind::Value`] for a number that doesn't fit.
    pub(super) fn finite(&self, name: &str, place: usize) -> Result<f64> {
        self.checked(name, place, self.number(place).is_finite(), "a finite number")
    }

    pub(super) fn at_least_0(&self, name: &str, place: usize) -> Result<f64> {
        let given = self.number(place);
        let fits = given.is_finite() && given >= 0.0;
        self.checked(name, place, fits, "a finite number of at least 0")
    }

    pub(super) fn below_1(&self, name: &str, place: usize) -> Result<f64> {
        let fits = (0.0..1.0).contains(&self.number(place));
        self.checked(name, place, fits, "at least 0 and less than 1")
    }

    /// Returns the number of the step.
    pub(super) fn step(&self, place: usize) -> Result<u64> {
        match self.args[place] {
            ValueRef::Int(step @ 1..) => Ok(step as u64),
            other => {
                let given = other.scalar().map_or(f64::NAN, keyfold_core::Scalar::as_f64);
                let message = format!(
                    "argument 'step' is {given}; steps are counted from 1 on, and the first step is 1"
                );
                Err(self.op.error(ErrorKind::Value, message))
            }
        }
    }

    pub(super) fn flag(&self, place: usize) -> bool {
        matches!(self.args[place], ValueRef::Bool(true))
    }

    /// # Errors
    /// [`ErrorKind::Value`] for a momentum without its buffer or the reverse, and for Nesterov's rule
    /// without a momentum, or with a dampening.
    pub(super) fn check_momentum(&self, params: &OptimParams, has_buffer: bool) -> Result<()> {
        let message = match (params.momentum != 0.0, has_buffer) {
            (true, false) => format!(
                "argument 'momentum' is {}, and argument 'momentum_buffer' is missing; give a tensor \
                 like the parameters, which keeps it from step to step",
                params.momentum
            ),
            (false, true) => {
                "argument 'momentum_buffer' is given, but argument 'momentum' is 0; leave \
                 the buffer away"
                    .to_owned()
            }
            (false, false) if params.nesterov => {
                "argument 'nesterov' needs a momentum; give one greater than 0".to_owned()
            }
            (true, true) if params.nesterov && params.dampening != 0.0 => format!(
                "argument 'nesterov' needs a dampening of 0, and argument 'dampening' is {}",
                params.dampening
            ),
            _ => return Ok(()),
        };
        Err(self.op.error(ErrorKind::Value, message))
    }
}
