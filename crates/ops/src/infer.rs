//! Inference of a call's result from the arguments, before any element is computed.
//!
//! A row that computes has one infer function: it checks the arguments and returns a [`CallPlan`], which is
//! the result's device, shape and dtype and the computation of its elements. The kernels for Meta and for
//! each backend, the overload `out` and [`Row::infer`](crate::Row::infer) are made of that function, so they
//! agree by construction.

use std::ops::Deref;

use keyfold_backend::ReduceParams;
use keyfold_core::{DType, Device, ErrorKind, Result, Scalar, Shape};
use keyfold_dispatch::Args;
use keyfold_layers::autograd::TensorMeta;
use keyfold_layers::pipeline::{Evaluated, for_each_tensor};
use keyfold_tensor::{Overlap, Tensor, Value, ValueRef, overlap};
use smallvec::SmallVec;

use crate::convert;
use crate::op::Op;
use crate::pointwise::{Size, check_written};

/// A call of an operator.
pub(crate) struct Call<'c, S> {
    op: &'c Op,
    /// The state of the operator's kernel, which lives across calls.
    pub(crate) state: &'c S,
    /// The caller's tensor that the result is written into, in a call of the overload `out`.
    out: Option<&'c Tensor>,
}

impl<S> Clone for Call<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Call<'_, S> {}

impl<S> Deref for Call<'_, S> {
    type Target = Op;

    #[inline]
    fn deref(&self) -> &Op {
        self.op
    }
}

impl<'c, S> Call<'c, S> {
    /// Makes a call of an operator with that state; its result is new, or written into `out`.
    #[inline]
    pub(crate) fn new(op: &'c Op, state: &'c S, out: Option<&'c Tensor>) -> Self {
        Call { op, state, out }
    }

    /// Returns the size of a result that doesn't follow from the inputs.
    pub(crate) fn size<'s>(&self, given: Option<&'s [usize]>) -> Size<'s>
    where
        'c: 's,
    {
        match (given, self.out) {
            (Some(given), _) => Size::Explicit(given),
            (None, Some(out)) => Size::OfOut(out),
            (None, None) => Size::Unknown,
        }
    }

    /// Returns the dtype and device of a factory's result: the requested ones, else those of `out`, else `dtype`
    /// and the backend's first device.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] where `out` is on another device.
    pub(crate) fn factory_options(
        &self,
        requested: Option<DType>,
        device: Option<Device>,
        dtype: DType,
    ) -> Result<(DType, Device)> {
        let Some(out) = self.out else {
            return Ok((requested.unwrap_or(dtype), self.op.device(device)));
        };
        if let Some(device) = device.filter(|device| *device != out.device()) {
            let message = format!(
                "argument 'device' is {device}, but argument 'out' is on {}; leave device away",
                out.device()
            );
            return Err(self.op.error(ErrorKind::Device, message));
        }
        Ok((requested.unwrap_or(out.dtype()), out.device()))
    }
}

/// The plan of a call: the result's device, shape and dtype, and the computation of its elements.
pub(crate) struct CallPlan<R> {
    pub(crate) form: TensorMeta,
    pub(crate) run: R,
}

/// The computation of a result's elements.
pub(crate) trait Run: Sized {
    /// Whether it can write a result of any strides; else only a contiguous one.
    const ANY_STRIDES: bool = false;

    /// Computes the elements.
    ///
    /// # Errors
    /// Those of the backend.
    ///
    /// # Safety
    /// `out` has the inferred device, shape and dtype. During the call nothing else uses its memory, which no
    /// argument shares.
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()>;

    /// Refuses elements of arguments that [`Run::run`] refuses while it writes. It is called before the
    /// computation writes to a tensor of the caller's, of which nothing may be written then.
    ///
    /// # Errors
    /// Those of [`Run::run`].
    #[inline(always)]
    fn check_elements(&self, _op: &Op) -> Result<()> {
        Ok(())
    }

    /// Returns the expression that it evaluates in a call with `args`; `None` if it computes in another way.
    fn evaluates(&self, _args: &[ValueRef<'_>]) -> Option<Box<Evaluated>> {
        None
    }

    /// Returns the leading dimensions along which it computes each index by itself: [`Form::rows`].
    ///
    /// [`Form::rows`]: keyfold_layers::pipeline::Form::rows
    fn rows(&self) -> usize {
        0
    }

    /// Returns the reduction that it is, if it goes along the last dimensions: [`Form::reduces`].
    ///
    /// [`Form::reduces`]: keyfold_layers::pipeline::Form::reduces
    fn reduces(&self) -> Option<ReduceParams> {
        None
    }

    /// Allocates the result and computes it.
    ///
    /// # Errors
    /// Those of the allocation and of the backend.
    #[inline(always)]
    fn fresh(self, op: &Op, form: &TensorMeta) -> Result<Tensor> {
        let out = op.output(form.device, &form.shape, form.dtype)?;
        // SAFETY: the result was allocated here, and nothing else refers to it.
        unsafe { self.run(op, &out) }?;
        Ok(out)
    }

    /// Computes the result into a checked tensor of the caller's. It has the inferred shape and a dtype that
    /// the result converts to, and may share memory with `args`.
    ///
    /// # Errors
    /// As [`Run::fresh`].
    ///
    /// # Safety
    /// During the call nothing else uses the memory of `out`.
    unsafe fn write(
        self,
        op: &Op,
        form: &TensorMeta,
        out: &Tensor,
        args: &[ValueRef<'_>],
    ) -> Result<()> {
        let direct = out.dtype() == form.dtype
            && (Self::ANY_STRIDES || out.is_contiguous())
            && !op.at(shares(args, out))?;
        if direct {
            self.check_elements(op)?;
            // SAFETY: the form is the inferred one, no argument shares the memory, and the caller's promise.
            return unsafe { self.run(op, out) };
        }
        let own = self.fresh(op, form)?;
        // SAFETY: the caller's promise.
        unsafe { convert::write_converted(op, &own, out) }
    }
}

/// Returns the positions of inputs among the tensors of a call's arguments; `None` if one isn't among them.
pub(crate) fn positions(inputs: &[&Tensor], args: &[ValueRef<'_>]) -> Option<SmallVec<[u32; 3]>> {
    let mut found: SmallVec<[Option<u32>; 3]> = SmallVec::from_elem(None, inputs.len());
    let mut position = 0;
    for arg in args {
        for_each_tensor(*arg, &mut |tensor| {
            for (input, found) in inputs.iter().zip(&mut found) {
                if std::ptr::eq(*input, tensor) {
                    found.get_or_insert(position);
                }
            }
            position += 1;
        });
    }
    found.into_iter().collect()
}

/// Returns whether a tensor among the arguments overlaps `out`.
fn shares(args: &[ValueRef<'_>], out: &Tensor) -> Result<bool> {
    for arg in args {
        let meets = match arg {
            ValueRef::Tensor(tensor) => overlap(out, tensor)? != Overlap::None,
            ValueRef::Foreign(object) => match object.tensor() {
                Ok(tensor) => overlap(out, tensor)? != Overlap::None,
                Err(_) => false,
            },
            list if list.list_len().is_some() => shares(&list.items().collect::<Vec<_>>(), out)?,
            _ => false,
        };
        if meets {
            return Ok(true);
        }
    }
    Ok(false)
}

impl<F: FnOnce(&Op, &Tensor) -> Result<()>> Run for F {
    #[inline(always)]
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        self(op, out)
    }
}

/// A computation that writes results of any strides.
pub(crate) struct AnyStrides<F>(pub(crate) F);

impl<F: FnOnce(&Op, &Tensor) -> Result<()>> Run for AnyStrides<F> {
    const ANY_STRIDES: bool = true;

    #[inline(always)]
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        self.0(op, out)
    }
}

/// A computation along dimensions, which writes results of any strides.
pub(crate) struct Lanes<F> {
    /// The number of dimensions before those that it goes along: each index of them is computed by itself.
    pub(crate) rows: usize,
    /// The reduction that it is, if it goes along the last dimensions.
    pub(crate) reduces: Option<ReduceParams>,
    pub(crate) run: F,
}

impl<F: FnOnce(&Op, &Tensor) -> Result<()>> Run for Lanes<F> {
    const ANY_STRIDES: bool = true;

    #[inline(always)]
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        (self.run)(op, out)
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn reduces(&self) -> Option<ReduceParams> {
        self.reduces
    }
}

/// A computation that may fail for some elements: a caller's tensor is written only after it succeeded
/// for all.
pub(crate) struct Whole<F>(pub(crate) F);

impl<F: FnOnce(&Op, &Tensor) -> Result<()>> Run for Whole<F> {
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        self.0(op, out)
    }

    unsafe fn write(
        self,
        op: &Op,
        form: &TensorMeta,
        out: &Tensor,
        _: &[ValueRef<'_>],
    ) -> Result<()> {
        let own = self.fresh(op, form)?;
        // SAFETY: the caller's promise.
        unsafe { convert::write_converted(op, &own, out) }
    }
}

/// The computation that writes one value everywhere.
pub(crate) struct Fill(pub(crate) Scalar);

impl Run for Fill {
    const ANY_STRIDES: bool = true;

    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        let value = op.at(Tensor::full(&[], self.0, out.dtype(), out.device()))?;
        // SAFETY: the caller's promise.
        unsafe { convert::write_converted(op, &value, out) }
    }

    #[inline]
    fn fresh(self, op: &Op, form: &TensorMeta) -> Result<Tensor> {
        op.at(Tensor::full(&form.shape, self.0, form.dtype, form.device))
    }
}

impl<R: Run> CallPlan<R> {
    /// Makes the plan of a result on that device, of that shape and dtype.
    #[inline]
    pub(crate) fn new(device: Device, shape: Shape, dtype: DType, run: R) -> Self {
        CallPlan { form: TensorMeta { device, shape, dtype }, run }
    }

    /// Replaces the computation.
    #[inline]
    pub(crate) fn map<T>(self, make: impl FnOnce(R) -> T) -> CallPlan<T> {
        CallPlan { form: self.form, run: make(self.run) }
    }

    /// Allocates the result and computes it; on Meta nothing is computed.
    ///
    /// # Errors
    /// As [`Run::fresh`].
    #[inline(always)]
    pub(crate) fn fresh(self, op: &Op) -> Result<Tensor> {
        let CallPlan { form, run } = self;
        match op.is_meta() {
            true => op.output(form.device, &form.shape, form.dtype),
            false => run.fresh(op, &form),
        }
    }

    /// Writes the result into an argument of the call with `args`.
    ///
    /// # Errors
    /// As [`check_written`] and [`Run::write`].
    ///
    /// # Safety
    /// During the call nothing else uses the memory of `out`: the schema says that the operator writes to this
    /// argument.
    pub(crate) unsafe fn write(
        self,
        op: &Op,
        (name, out): (&str, &Tensor),
        args: &[ValueRef<'_>],
    ) -> Result<()> {
        let CallPlan { form, run } = self;
        check_written(op, name, out, &form.shape, form.dtype)?;
        if op.is_meta() {
            return Ok(());
        }
        // SAFETY: the caller's promise; the tensor was checked.
        unsafe { run.write(op, &form, out, args) }
    }
}

/// A function that checks a call's arguments and plans the call.
///
/// Implemented for functions of [`Call`] and the arguments `A` as one tuple, which return a [`CallPlan`] whose
/// type may have the lifetimes of both.
pub(crate) trait Infer<'c, 'a, A: Args<Value>, S> {
    type Run: Run;

    /// # Errors
    /// Those of the checks.
    fn infer(&self, call: Call<'c, S>, args: A::Of<'a>) -> Result<CallPlan<Self::Run>>;

    /// The same for the kernels that make fresh results, of which each operator has one: through a path
    /// of its own, which is inlined there since nothing else uses it. A plan is large, and returning
    /// one costs more than inferring it.
    ///
    /// # Errors
    /// As [`Infer::infer`].
    fn infer_fresh(self, call: Call<'c, S>, args: A::Of<'a>) -> Result<CallPlan<Self::Run>>;
}

#[inline(always)]
fn call_once<X, Y, T>(f: impl FnOnce(X, Y) -> T, x: X, y: Y) -> T {
    f(x, y)
}

impl<'c, 'a, A, S, R, F> Infer<'c, 'a, A, S> for F
where
    A: Args<Value>,
    S: 'c,
    R: Run,
    F: Fn(Call<'c, S>, A::Of<'a>) -> Result<CallPlan<R>>,
{
    type Run = R;

    #[inline(always)]
    fn infer(&self, call: Call<'c, S>, args: A::Of<'a>) -> Result<CallPlan<R>> {
        self(call, args)
    }

    #[inline(always)]
    fn infer_fresh(self, call: Call<'c, S>, args: A::Of<'a>) -> Result<CallPlan<R>> {
        call_once(self, call, args)
    }
}

/// The plan of a call with several results: the device, shape and dtype of each, and their computation.
///
/// A result that the call doesn't want has the form `None`; it is `None` in the caller's tuple, and the
/// computation isn't given it.
pub(crate) struct SeveralPlan<R> {
    pub(crate) forms: SmallVec<[Option<TensorMeta>; 4]>,
    run: R,
    is_whole: bool,
}

/// The computation of several results into contiguous tensors of the planned forms. During the call nothing else
/// uses their memory, which no argument shares.
pub(crate) trait RunSeveral: FnOnce(&Op, &[&Tensor]) -> Result<()> {}

impl<F: FnOnce(&Op, &[&Tensor]) -> Result<()>> RunSeveral for F {}

impl<R: RunSeveral> SeveralPlan<R> {
    /// Makes the plan of results of these forms, each on a device, of a shape and a dtype.
    pub(crate) fn new(forms: impl IntoIterator<Item = (Device, Shape, DType)>, run: R) -> Self {
        Self::of_wanted(forms.into_iter().map(Some), run)
    }

    /// As [`SeveralPlan::new`], without those results that the call doesn't want.
    pub(crate) fn of_wanted(
        forms: impl IntoIterator<Item = Option<(Device, Shape, DType)>>,
        run: R,
    ) -> Self {
        let form = |(device, shape, dtype)| TensorMeta { device, shape, dtype };
        let forms = forms.into_iter().map(|one| one.map(form)).collect();
        SeveralPlan { forms, run, is_whole: false }
    }

    /// Declares that the computation may fail after it wrote some elements: tensors of the caller's are
    /// written only after it succeeded.
    pub(crate) fn whole(self) -> Self {
        SeveralPlan { is_whole: true, ..self }
    }

    /// Allocates the results and computes them; on Meta nothing is computed.
    ///
    /// # Errors
    /// Those of the allocation and of the backend.
    pub(crate) fn fresh(self, op: &Op) -> Result<Value> {
        let made = |form: &Option<TensorMeta>| {
            form.as_ref().map(|form| op.output(form.device, &form.shape, form.dtype)).transpose()
        };
        let results = self.forms.iter().map(made).collect::<Result<SmallVec<[_; 4]>>>()?;
        if !op.is_meta() {
            let outs: SmallVec<[&Tensor; 4]> = results.iter().flatten().collect();
            (self.run)(op, &outs)?;
        }
        Ok(tuple_of(results))
    }

    /// Writes the results into arguments of the call with `args`, one for each result and `None` for one that
    /// the call doesn't want. All of them are checked before the first is written.
    ///
    /// # Errors
    /// As [`check_written`], [`ErrorKind::Value`] where two of them share memory, or for a result that isn't
    /// wanted or has no tensor, and those of [`SeveralPlan::fresh`].
    ///
    /// # Safety
    /// During the call nothing else uses the memory of `outs`: the schema says that the operator writes to
    /// these arguments.
    pub(crate) unsafe fn write(
        self,
        op: &Op,
        outs: &[(&str, Option<&Tensor>)],
        args: &[ValueRef<'_>],
    ) -> Result<Value> {
        let wanted = wanted_outs(op, &self.forms, outs)?;
        if !op.is_meta() {
            let own = own_outs(op, &wanted, self.is_whole, args)?;
            let targets =
                wanted.iter().zip(&own).map(|((.., out), own)| own.as_ref().unwrap_or(out));
            (self.run)(op, &targets.collect::<SmallVec<[&Tensor; 4]>>())?;
            for ((.., out), own) in wanted.iter().zip(&own) {
                if let Some(own) = own {
                    // SAFETY: the caller's promise.
                    unsafe { convert::write_converted(op, own, out) }?;
                }
            }
        }
        Ok(tuple_of(outs.iter().map(|(_, out)| out.cloned())))
    }
}

/// Returns the results of a call as its value.
pub(crate) fn tuple_of(results: impl IntoIterator<Item = Option<Tensor>>) -> Value {
    let value = |result: Option<Tensor>| result.map_or(Value::None, Value::Tensor);
    Value::Tuple(results.into_iter().map(value).collect())
}

/// For each wanted result its form, the name of the argument that it is written into, and its tensor.
type WantedOuts<'o> = SmallVec<[(&'o TensorMeta, &'o str, &'o Tensor); 4]>;

/// Returns for each wanted result a tensor of the computation's own, if it can't write into the caller's.
fn own_outs(
    op: &Op,
    wanted: &WantedOuts<'_>,
    is_whole: bool,
    args: &[ValueRef<'_>],
) -> Result<SmallVec<[Option<Tensor>; 4]>> {
    let mut own = SmallVec::new();
    for (form, _, out) in wanted {
        let is_direct = !is_whole && out.dtype() == form.dtype && out.is_contiguous();
        let is_direct = is_direct && !op.at(shares(args, out))?;
        let made = (!is_direct).then(|| op.output(form.device, &form.shape, form.dtype));
        own.push(made.transpose()?);
    }
    Ok(own)
}

/// Returns the form of each wanted result, with the name of the argument that it is written into and its
/// tensor, which were checked.
pub(crate) fn wanted_outs<'o>(
    op: &Op,
    forms: &'o [Option<TensorMeta>],
    outs: &[(&'o str, Option<&'o Tensor>)],
) -> Result<WantedOuts<'o>> {
    let mut wanted = WantedOuts::new();
    for (form, (name, out)) in forms.iter().zip(outs) {
        match (form, out) {
            (Some(form), Some(out)) => {
                check_written(op, name, out, &form.shape, form.dtype)?;
                for (_, other, before) in &wanted {
                    if op.at(overlap(before, out))? != Overlap::None {
                        let message = format!(
                            "arguments '{other}' and '{name}' share memory; give each result a tensor of \
                             its own"
                        );
                        return Err(op.error(ErrorKind::Value, message));
                    }
                }
                wanted.push((form, name, out));
            }
            (Some(form), None) => {
                let message = format!(
                    "argument '{name}' is None, but its result is computed; give a {} tensor of shape \
                     {:?}",
                    form.dtype, form.shape
                );
                return Err(op.error(ErrorKind::Value, message));
            }
            (None, Some(_)) => {
                let message = format!(
                    "argument '{name}' is given, but this call doesn't compute its result; give None"
                );
                return Err(op.error(ErrorKind::Value, message));
            }
            (None, None) => {}
        }
    }
    Ok(wanted)
}

/// A function that checks a call's arguments and plans its several results, as [`Infer`] does for one.
pub(crate) trait InferSeveral<'c, 'a, A: Args<Value>, S> {
    type Run: RunSeveral;

    /// # Errors
    /// Those of the checks.
    fn infer(&self, call: Call<'c, S>, args: A::Of<'a>) -> Result<SeveralPlan<Self::Run>>;
}

impl<'c, 'a, A, S, R, F> InferSeveral<'c, 'a, A, S> for F
where
    A: Args<Value>,
    S: 'c,
    R: RunSeveral,
    F: Fn(Call<'c, S>, A::Of<'a>) -> Result<SeveralPlan<R>>,
{
    type Run = R;

    fn infer(&self, call: Call<'c, S>, args: A::Of<'a>) -> Result<SeveralPlan<R>> {
        self(call, args)
    }
}
