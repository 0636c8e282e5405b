//! Whether a call is recorded: by its inferred results, and by what it reads and writes.

use std::sync::Arc;

use keyfold_backend::ReduceParams;
use keyfold_core::{DType, Device, DeviceType, ErrorKind, Result, Scalar, Shape, Strides, layout};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{CallContext, DispatchKey, Operator, Tags, Value as _};
use keyfold_expr::Expr;
use keyfold_tensor::{Value, ValueRef};
use smallvec::SmallVec;

use super::cost::Cost;
use super::known::{CallForm, Key, KnownForms};
use super::operation::{Structure, for_each_tensor};
use crate::meta;

/// The memory of an inferred result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// New.
    Fresh,
    /// An argument's, as a view.
    Shared,
    /// The result is the argument at this position.
    Argument(usize),
}

/// The form of an inferred result.
#[derive(Clone, Debug)]
pub struct Form {
    /// The size of each dimension.
    pub shape: Shape,
    /// The dtype.
    pub dtype: DType,
    /// The stride of each dimension, in elements.
    pub strides: Strides,
    /// The memory.
    pub memory: Memory,
    /// The expression whose values are the elements, if the operator evaluates one.
    pub evaluates: Option<Box<Evaluated>>,
    /// For an operator of one tensor, the number of leading dimensions along which each index of the
    /// result is computed from the same index of the tensor alone, with the same digits however many there
    /// are if the tensor is contiguous: those of a sum along the last dimensions. 0 if nothing is known.
    pub rows: usize,
    /// For an operator of one tensor, the reduction along its last dimensions, or all, that the call is: of
    /// the tensor's dtype to the result's, with the bits of the backend's kernel for it, which then runs without
    /// the operator's own.
    pub reduces: Option<ReduceParams>,
    /// The time that the call takes, of an operator that does more than a few operations for each element.
    pub work: Option<Work>,
}

/// An estimate of the time of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The nanoseconds on one thread.
    pub nanoseconds: f64,
    /// Whether the kernel divides long work among threads.
    pub divides: bool,
}

/// The expression that a call evaluates for each element of its result.
#[derive(Clone, PartialEq, Debug)]
pub struct Evaluated {
    /// The expression. Calls of one operator share it.
    pub expr: Arc<Expr>,
    /// For each of its inputs, the position among the tensors of the arguments, lists included.
    pub inputs: SmallVec<[u32; 3]>,
    /// The numbers that are its parameters.
    pub params: SmallVec<[Scalar; 1]>,
    /// The dtype of the result, `None` for the expression's own.
    pub out: Option<DType>,
}

/// A function that infers a call's results from its arguments without reading elements; `None` for one
/// that the call doesn't want.
pub type Infer = dyn Fn(&[ValueRef<'_>]) -> Result<Vec<Option<Form>>> + Send + Sync;

/// The inference of one operator's calls, and what it has found.
pub(super) struct Inference {
    infer: Arc<Infer>,
    known: KnownForms,
}

impl Inference {
    pub(super) fn new(infer: Arc<Infer>) -> Inference {
        Inference { infer, known: KnownForms::default() }
    }
}

/// The decision on a call.
pub(super) enum Decision {
    /// It runs now, since it can't be deferred.
    AtOnce(&'static str),
    /// It runs now, since there is nothing to defer.
    Below,
    /// It makes views, and reads no elements.
    View,
    Record(Arc<CallForm>),
}

/// Decides on a call. `inference` is the operator's own, if it has one, and `key` that of the call, if it can be
/// compared with others.
pub(super) fn decide(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    inference: Option<&Inference>,
    key: Option<&Key>,
) -> Result<Decision> {
    let Some((Inference { infer, known }, key)) = inference.zip(key) else {
        return decide_anew(context, args, inference.map(|own| &*own.infer), &[]);
    };
    if let Some(form) = known.find(key) {
        return Ok(Decision::Record(form));
    }
    let decision = decide_anew(context, args, Some(&**infer), key.words())?;
    // Whether a call writes in place depends on more than its key.
    if let Decision::Record(form) = &decision
        && form.written.is_empty()
    {
        known.keep(key, form);
    }
    Ok(decision)
}

fn decide_anew(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    infer: Option<&Infer>,
    key: &[u64],
) -> Result<Decision> {
    use Decision::AtOnce;
    let operator = context.operator();
    let (schema, tags) = (operator.schema(), operator.tags());
    if context.keyset().backend() == Some(DispatchKey::Meta) {
        return Ok(Decision::Below);
    }
    if crosses_devices(args) {
        return Ok(AtOnce("it moves data between devices"));
    }
    if tags.contains(Tags::DATA_DEPENDENT_SHAPE) {
        return Ok(AtOnce("its result's shape depends on elements"));
    }
    let structure = match &schema.returns[..] {
        [] => return Ok(AtOnce("it has effects and no result")),
        [one] if matches!(one.ty, Type::List(..)) => Structure::List,
        [_] => Structure::One,
        _ => Structure::Tuple,
    };
    if !schema.returns.iter().all(|result| result.ty.carries_tensors()) {
        return Ok(AtOnce("a result isn't a tensor"));
    }
    if args.iter().any(|arg| has_own_class(*arg)) {
        return Ok(AtOnce("its arguments are of a registered class"));
    }
    let is_written = |at: &usize| schema.arguments[*at].alias.as_ref().is_some_and(|a| a.write);
    let written: SmallVec<[usize; 1]> = (0..schema.arguments.len()).filter(is_written).collect();
    let is_pending = |at: &usize| match args[*at] {
        // A read-only one is an error of the call.
        ValueRef::Tensor(tensor) => tensor.is_pending() && tensor.is_writable(),
        _ => false,
    };
    if !written.iter().all(is_pending) {
        return Ok(AtOnce("it writes to memory that isn't pending, or is read-only"));
    }
    let has_row = infer.is_some();
    let forms = match infer {
        Some(infer) => infer(args),
        None => infer_by_meta(operator, args),
    };
    let mut forms = match forms {
        Ok(forms) => forms,
        Err(error) if error.kind() == ErrorKind::MissingKernel => {
            return Ok(AtOnce("it has no kernel for Meta"));
        }
        Err(error) if error.kind() == ErrorKind::NotSupported => {
            return Ok(AtOnce("its result's shape can't be inferred"));
        }
        Err(error) => return Err(error),
    };
    let is_random = tags.contains(Tags::NONDETERMINISTIC_SEEDED)
        || schema.arguments.iter().any(|argument| *argument.ty.base() == Type::Generator);
    let device = device_of(context, args);
    if !written.is_empty() {
        return Ok(match &forms[..] {
            [Some(Form { memory: Memory::Argument(at), .. })] if has_row => {
                let structure = Structure::Written(*at);
                let (forms, evaluates, cost) = (Vec::new(), None, Cost::Short);
                let key = Box::default();
                let form =
                    CallForm { key, forms, structure, written, device, evaluates, is_random, cost };
                Decision::Record(Arc::new(form))
            }
            _ => AtOnce("its results aren't the arguments that it writes to"),
        });
    }
    let fresh = forms.iter().flatten().filter(|form| form.memory == Memory::Fresh).count();
    let all = forms.iter().flatten().count();
    if fresh == 0 && all > 0 {
        return Ok(if has_row { Decision::View } else { AtOnce("its result shares memory") });
    }
    if fresh < all {
        return Ok(AtOnce("some of its results share memory"));
    }
    let contiguous = |form: &Form| layout::is_contiguous(&form.shape, &form.strides);
    if !forms.iter().flatten().all(contiguous) {
        return Ok(AtOnce("its result isn't contiguous"));
    }
    let evaluates = forms.iter_mut().flatten().last().and_then(|form| form.evaluates.take());
    let cost = Cost::of(args, &forms, evaluates.as_deref());
    let key = Box::from(key);
    let form = CallForm { key, forms, structure, written, device, evaluates, is_random, cost };
    Ok(Decision::Record(Arc::new(form)))
}

/// Returns the device of a call's new results: that of a device argument, or of the first tensor on
/// the backend of the call.
fn device_of(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Device {
    let backend = context.keyset().backend().and_then(DispatchKey::device_type);
    let backend = backend.unwrap_or(DeviceType::CPU);
    let mut found = None;
    for arg in args {
        match arg {
            ValueRef::Device(device) => return *device,
            arg => for_each_tensor(*arg, &mut |tensor| {
                if tensor.device().kind() == backend {
                    found.get_or_insert(tensor.device());
                }
            }),
        }
    }
    found.unwrap_or(Device::new(backend, 0))
}

/// Returns whether tensors are on several devices, or on another one than a device that is given. A
/// number of the host beside tensors of a device counts as theirs.
fn crosses_devices(args: &[ValueRef<'_>]) -> bool {
    let (mut first, mut crosses) = (None, false);
    for arg in args {
        for_each_tensor(*arg, &mut |tensor| {
            if tensor.ndim() > 0 || !tensor.device().kind().is_host() {
                crosses |= *first.get_or_insert(tensor.device()) != tensor.device();
            }
        });
    }
    let given = args.iter().find_map(|arg| match arg {
        ValueRef::Device(device) => Some(*device),
        _ => None,
    });
    crosses || first.zip(given).is_some_and(|(first, given)| first != given)
}

/// Infers by the operator's kernel for Meta.
fn infer_by_meta(operator: &Operator<Value>, args: &[ValueRef<'_>]) -> Result<Vec<Option<Form>>> {
    let (result, aliases) = meta::infer_aliases(operator, args)?;
    let items = match &result {
        Value::Tuple(items) | Value::List(items) => &items[..],
        one => std::slice::from_ref(one),
    };
    let mut aliases = aliases.into_iter();
    let form = |item: &Value| -> Result<Option<Form>> {
        if matches!(item, Value::None) {
            return Ok(None);
        }
        let tensor = item.as_ref().tensor()?;
        let memory = match aliases.next().flatten() {
            Some(_) => Memory::Shared,
            None => Memory::Fresh,
        };
        let (shape, strides) = (tensor.shape().clone(), tensor.strides().clone());
        let (dtype, evaluates) = (tensor.dtype(), None);
        let (rows, reduces, work) = (0, None, None);
        Ok(Some(Form { shape, strides, dtype, memory, evaluates, rows, reduces, work }))
    };
    items.iter().map(form).collect()
}

/// Returns whether an argument is of a class that a user registered, which selects kernels.
fn has_own_class(arg: ValueRef<'_>) -> bool {
    match arg {
        ValueRef::Foreign(object) => object.is_of_registered_class() || !object.is_tensor(),
        list => list.items().any(has_own_class),
    }
}
