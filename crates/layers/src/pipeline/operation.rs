//! One recorded operation.

use std::fmt::Write as _;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Shape};
use keyfold_dispatch::{DispatchKeySet, LocalContext, Operator, Value as _, inside_layers};
use keyfold_tensor::device::{StreamId, current_stream, set_current_stream};
use keyfold_tensor::{PendingBuffer, Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::decide::Form;
use super::fusion;
use super::host::Site;
use super::known::CallForm;
use crate::tracer::Info;

/// A result: its form, and the memory that it fills, as long as somebody holds it.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) memory: Weak<PendingBuffer>,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
}

/// How the results are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Structure {
    One,
    List,
    Tuple,
    /// The argument at this position, which the operation writes to.
    Written(usize),
}

/// A recorded call of an operator, with all that it needs to run later.
pub(super) struct Operation {
    pub(super) index: usize,
    pub(super) operator: Arc<Operator<Value>>,
    /// The keys below the pipeline.
    pub(super) keyset: DispatchKeySet,
    /// The local key sets and objects of the thread that recorded it.
    pub(super) context: Arc<LocalContext>,
    pub(super) site: Option<Site>,
    /// The stream of a device's thread that recorded it.
    pub(super) stream: Option<(Device, StreamId)>,
    pub(super) form: Arc<CallForm>,
    /// Empty after it ran.
    pub(super) args: Mutex<Vec<Value>>,
    /// The write counts of arguments that aren't pending, in order, when it was recorded.
    pub(super) versions: SmallVec<[u32; 4]>,
    pub(super) results: SmallVec<[Option<Slot>; 1]>,
    /// The operations that run before.
    pub(super) after: SmallVec<[usize; 4]>,
    /// The bytes that wait with it: its results, and copies of other libraries' arrays.
    pub(super) bytes: u64,
}

impl Deref for Operation {
    type Target = CallForm;

    fn deref(&self) -> &CallForm {
        &self.form
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operation({}, {})", self.index, self.operator.name())
    }
}

/// Why an operation has no results.
pub(super) enum Stopped {
    /// An operation before failed with that error.
    Before(keyfold_core::SharedError),
    /// It failed itself.
    Itself(Error),
}

impl Operation {
    /// Returns whether nobody holds a result and no effect is lost without it.
    pub(super) fn is_dead(&self) -> bool {
        let unheld =
            |slot: &Option<Slot>| slot.as_ref().is_none_or(|s| s.memory.strong_count() == 0);
        self.is_pure() && self.results.iter().all(unheld)
    }

    /// Calls `f` with the address of each pending argument's memory.
    pub(super) fn each_pending(&self, f: &mut impl FnMut(usize)) {
        self.each_tensor(&mut |tensor| {
            if let Some(pending) = tensor.pending_buffer() {
                f(std::ptr::from_ref(pending).addr());
            }
        });
    }

    /// Returns whether it may fail for some elements: pointwise operations of integers may, sums and softmax don't, and
    /// of others nothing is known.
    pub(super) fn may_fail(&self) -> bool {
        if self.evaluates.is_none() {
            return self.rows() == 0 && self.reduces().is_none();
        }
        let mut results = self.results.iter().flatten();
        results.any(|slot| !slot.dtype.is_floating() && !slot.dtype.is_complex())
    }

    /// Calls `f` with each tensor of the arguments.
    pub(super) fn each_tensor(&self, f: &mut impl FnMut(&Tensor)) {
        let args = self.args.lock().unwrap_or_else(PoisonError::into_inner);
        args.iter().for_each(|arg| for_each_tensor(arg.as_ref(), &mut |tensor| f(tensor)));
    }

    /// Returns a copy, which keeps its arguments when the operation runs.
    pub(super) fn copy(&self) -> Operation {
        Operation {
            index: self.index,
            operator: Arc::clone(&self.operator),
            keyset: self.keyset,
            context: Arc::clone(&self.context),
            site: self.site.clone(),
            stream: self.stream,
            form: Arc::clone(&self.form),
            args: Mutex::new(self.args.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            versions: self.versions.clone(),
            results: self.results.clone(),
            after: self.after.clone(),
            bytes: self.bytes,
        }
    }

    /// Takes the arguments, which are dropped without a lock.
    pub(super) fn take_args(&self) -> Vec<Value> {
        std::mem::take(&mut *self.args.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs the operation and stages its results.
    pub(super) fn run(&self) -> Result<(), Stopped> {
        let ready = self.ready_args()?;
        let result = self.call(&ready).map_err(Stopped::Itself)?;
        self.deliver(result).map_err(Stopped::Itself)
    }

    /// Returns the arguments over the memory that operations before have computed.
    pub(super) fn ready_args(&self) -> Result<Vec<Value>, Stopped> {
        let mut ready = {
            let args = self.args.lock().unwrap_or_else(PoisonError::into_inner);
            self.check_versions(&args).map_err(Stopped::Itself)?;
            // Not collected, since that moves values, which are large, several times.
            let mut all = Vec::with_capacity(args.len());
            for arg in &*args {
                all.push(ready(arg)?);
            }
            all
        };
        ready.iter_mut().try_for_each(complete)?;
        Ok(ready)
    }

    /// Calls the operator below the pipeline, as on the thread that recorded it.
    pub(super) fn call(&self, args: &[Value]) -> Result<Value> {
        let args: SmallVec<[ValueRef<'_>; 8]> = args.iter().map(Value::as_ref).collect();
        guarded(|| self.call_lent(&args))
    }

    /// As [`Operation::call`], with arguments where they are, and without [`guarded`].
    pub(super) fn call_lent(&self, args: &[ValueRef<'_>]) -> Result<Value> {
        // As layers that run, so that a kernel of the host language, which applies its own context to
        // its calls, doesn't reach them either.
        let excluded = self.context.keys().excluded();
        let below = || self.operator.redispatch(self.keyset, args);
        self.on_stream(|| self.context.replace(|| inside_layers(excluded, below)))
    }

    /// As [`Operation::call`], with all arguments, if the kernel may run on any thread; `None`, without a
    /// call, if another one was registered since the plan was made.
    pub(super) fn call_if_movable(&self, args: &[Value]) -> Option<Result<Value>> {
        let refs: SmallVec<[ValueRef<'_>; 8]> = args.iter().map(Value::as_ref).collect();
        let excluded = self.context.keys().excluded();
        let mut is_movable = true;
        let below = || {
            self.operator.redispatch_with(self.keyset, |context, kernel| {
                is_movable = fusion::is_movable(kernel);
                if !is_movable {
                    return Ok(Value::None);
                }
                let result = kernel.invoke(context, &refs)?;
                self.operator.check_return(kernel, &result)?;
                Ok(result)
            })
        };
        let result = guarded(|| self.context.replace(|| inside_layers(excluded, below)));
        is_movable.then_some(result)
    }

    /// Calls `f` with each result of a call, and the number of its slot.
    ///
    /// # Errors
    /// [`ErrorKind::Return`] for another number of them than inferred; those of `f`.
    #[inline]
    pub(super) fn for_each_result(
        &self,
        mut result: Value,
        mut f: impl FnMut(usize, Value) -> Result<()>,
    ) -> Result<()> {
        let check = |count| match count == self.results.len() {
            true => Ok(()),
            false => Err(self.differs(&format!("{count} results"))),
        };
        let items = match (self.structure, &mut result) {
            (Structure::Written(_), _) => Vec::new(),
            (Structure::List | Structure::Tuple, Value::List(items) | Value::Tuple(items)) => {
                std::mem::take(items)
            }
            // Without a list, since values are large.
            _ => {
                check(1)?;
                return f(0, result);
            }
        };
        check(items.len())?;
        items.into_iter().enumerate().try_for_each(|(at, item)| f(at, item))
    }

    /// Runs `f` with the recording thread's stream.
    pub(super) fn on_stream<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        struct Restore(Device, StreamId);
        impl Drop for Restore {
            fn drop(&mut self) {
                // The stream was valid before.
                let _ = set_current_stream(self.0, self.1);
            }
        }
        let Some((device, stream)) = self.stream.filter(|(d, s)| current_stream(*d) != *s) else {
            return f();
        };
        let _restore = Restore(device, set_current_stream(device, stream)?);
        f()
    }

    /// Refuses an input that something else changed since the recording.
    pub(super) fn check_versions(&self, args: &[Value]) -> Result<()> {
        let (mut at, mut changed) = (0, None);
        for (argument, arg) in self.operator.schema().arguments.iter().zip(args) {
            for_each_tensor(arg.as_ref(), &mut |tensor| {
                if tensor.pending_buffer().is_none() {
                    if self.versions.get(at).is_some_and(|version| *version != tensor.version()) {
                        changed.get_or_insert(&argument.name);
                    }
                    at += 1;
                }
            });
        }
        let Some(name) = changed else { return Ok(()) };
        Err(Error::new(
            ErrorKind::Pipeline,
            format!(
                "{}: argument '{name}' was changed in place since the call was recorded, where the \
                 pipeline couldn't see it (on another thread, or by code without operators); flush \
                 before such a write, or give the call a copy",
                self.operator.name()
            ),
        ))
    }

    /// Returns the tensor at a position among those of the arguments; `None` if another thread took them,
    /// after it ran the operation.
    pub(super) fn tensor(&self, at: usize) -> Option<Tensor> {
        let args = self.args.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut position, mut found) = (0, None);
        for arg in &*args {
            for_each_tensor(arg.as_ref(), &mut |tensor| {
                if position == at {
                    found = Some(tensor);
                }
                position += 1;
            });
        }
        found.cloned()
    }

    /// Returns a tensor of the arguments over the memory that operations before have computed.
    pub(super) fn ready_tensor(&self, at: usize) -> Result<Tensor, Stopped> {
        match self.tensor(at) {
            Some(tensor) => completed(ready_of(&tensor)?),
            None => Err(Stopped::Itself(Error::new(ErrorKind::Pipeline, "the operation ran"))),
        }
    }

    /// Returns the result at a position among those that the call wanted, and its place among all.
    pub(super) fn wanted(&self, at: usize) -> Option<(usize, &Slot)> {
        let slots = self.results.iter().enumerate();
        slots.filter_map(|(place, slot)| Some((place, slot.as_ref()?))).nth(at)
    }

    /// Stages the result at a position among those that the call wanted, if somebody holds it.
    pub(super) fn stage(&self, at: usize, result: Tensor) -> Result<()> {
        let Some((_, slot)) = self.wanted(at) else { return Ok(()) };
        match slot.memory.upgrade() {
            Some(memory) => memory.stage(self.memory_of(slot, result)?),
            None => Ok(()),
        }
    }

    /// Stages the results.
    pub(super) fn deliver(&self, result: Value) -> Result<()> {
        self.for_each_result(result, |at, item| {
            let Some(slot) = &self.results[at] else { return Ok(()) };
            let Some(memory) = slot.memory.upgrade() else { return Ok(()) };
            memory.stage(self.memory_of(slot, item.into_tensor()?)?)
        })
    }

    /// Returns a result's memory: its own, or a copy where it isn't a whole buffer of its own.
    fn memory_of(
        &self,
        slot: &Slot,
        mut result: Tensor,
    ) -> Result<Arc<dyn keyfold_tensor::DeviceBuffer>> {
        self.make_own(slot, &mut result)?;
        match result.into_buffer().into_shared() {
            Some(memory) => Ok(memory),
            None => Err(self.differs("memory of another library")),
        }
    }

    /// Makes a result a whole buffer of its own: a copy where it isn't.
    ///
    /// # Errors
    /// [`ErrorKind::Return`] for another form than inferred; those of the copy.
    pub(super) fn make_own(&self, slot: &Slot, result: &mut Tensor) -> Result<()> {
        if result.shape() != &slot.shape || result.dtype() != slot.dtype {
            return Err(self.differs(&format!("{}{:?}", result.dtype(), result.shape())));
        }
        if result.pending_buffer().is_some()
            && let Some(done) = result.completed()?
        {
            *result = done;
        }
        make_own(result)
    }

    #[cold]
    fn differs(&self, found: &str) -> Error {
        let forms: Vec<String> = self.results.iter().flatten().map(Slot::describe).collect();
        Error::new(
            ErrorKind::Return,
            format!(
                "{}: the kernel returned {found}, and its kernel for Meta had said {}",
                self.operator.name(),
                forms.join(", ")
            ),
        )
    }

    /// Returns the forms of the results.
    pub(super) fn forms(&self) -> Vec<Option<Info>> {
        let device = self.device;
        let info =
            |slot: &Slot| Info { dtype: Some(slot.dtype), shape: slot.shape.clone(), device };
        let args = self.args.lock().unwrap_or_else(PoisonError::into_inner);
        match self.structure {
            Structure::Written(at) => match args.get(at) {
                Some(Value::Tensor(tensor)) => vec![Some(Info::of(tensor))],
                _ => vec![None],
            },
            _ => self.results.iter().map(|slot| slot.as_ref().map(info)).collect(),
        }
    }

    /// Returns the arguments over the memory that operations before have computed; `None` if one of
    /// them failed.
    pub(super) fn inputs(&self) -> Option<Vec<Value>> {
        let args = self.args.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let inputs = args.iter().map(|arg| {
            let mut input = ready(arg).ok()?;
            complete(&mut input).ok().map(|()| input)
        });
        inputs.collect()
    }

    /// Describes the call: `%2: float32[3] = aten::add(%1, float32[3], 1)`.
    pub(super) fn describe(&self, producer: &dyn Fn(&Tensor) -> Option<String>) -> String {
        let args = self.args.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = match self.structure {
            Structure::Written(_) => format!("%{}", self.index),
            _ => {
                let forms: Vec<String> =
                    self.results.iter().flatten().map(Slot::describe).collect();
                format!("%{}: {}", self.index, forms.join(", "))
            }
        };
        let _ = write!(text, " = {}(", self.operator.name());
        let shown = args.len()
            - args
                .iter()
                .enumerate()
                .rev()
                .take_while(|(at, arg)| {
                    let default = self.operator.default_value(*at);
                    default.is_some_and(|default| {
                        format!("{:?}", default.as_ref()) == format!("{:?}", arg.as_ref())
                    })
                })
                .count();
        for (at, arg) in args[..shown].iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            let _ = write!(text, "{comma}{}", show(arg, producer));
        }
        text.push(')');
        text
    }
}

impl Slot {
    pub(super) fn new(memory: Weak<PendingBuffer>, form: &Form) -> Slot {
        Slot { memory, shape: form.shape.clone(), dtype: form.dtype }
    }

    /// Returns the size of the result.
    pub(super) fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size()) as u64
    }

    fn describe(&self) -> String {
        format!("{}{:?}", self.dtype, self.shape)
    }
}

/// Describes an argument.
fn show(arg: &Value, producer: &dyn Fn(&Tensor) -> Option<String>) -> String {
    match arg {
        Value::Tensor(tensor) => {
            producer(tensor).unwrap_or_else(|| format!("{}{:?}", tensor.dtype(), tensor.shape()))
        }
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(|item| show(item, producer)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::None => "None".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Complex(number) => format!("({number})"),
        Value::Str(text) => format!("{text:?}"),
        Value::DType(dtype) => dtype.to_string(),
        Value::Device(device) => device.to_string(),
        other => Value::describe(other.as_ref()),
    }
}

/// Returns an argument over the memory that operations before have computed. What they haven't is left
/// for [`complete`], since a lock is held here.
fn ready(arg: &Value) -> Result<Value, Stopped> {
    Ok(match arg {
        Value::Tensor(tensor) => Value::Tensor(ready_of(tensor)?),
        Value::List(items) => Value::List(items.iter().map(ready).collect::<Result<_, _>>()?),
        other => other.clone(),
    })
}

pub(super) fn ready_of(tensor: &Tensor) -> Result<Tensor, Stopped> {
    let Some(pending) = tensor.pending_buffer() else { return Ok(tensor.clone()) };
    match (pending.failure(), tensor.over_staged()) {
        (Some(error), _) => Err(Stopped::Before(error.clone())),
        (None, Some(ready)) => Ok(ready),
        (None, None) => Ok(tensor.clone()),
    }
}

/// Waits for what an argument still lacks: tensors of another session, or one that ran them meanwhile.
fn complete(arg: &mut Value) -> Result<(), Stopped> {
    match arg {
        Value::Tensor(tensor) if tensor.pending_buffer().is_some() => {
            *tensor = completed(tensor.clone())?;
            Ok(())
        }
        Value::List(items) => items.iter_mut().try_for_each(complete),
        _ => Ok(()),
    }
}

fn completed(tensor: Tensor) -> Result<Tensor, Stopped> {
    Ok(tensor.completed().map_err(Stopped::Itself)?.unwrap_or(tensor))
}

/// Makes a result a whole buffer of its own: a copy where it isn't. It stays where it is, since tensors are large.
pub(super) fn make_own(result: &mut Tensor) -> Result<()> {
    let whole = result.is_contiguous() && result.offset() == 0 && result.is_writable();
    // Memory that somebody else may write to isn't the result's own.
    if !whole || result.buffer().is_lent() || result.buffer().shares() != 1 {
        *result = result.copy()?;
    }
    Ok(())
}

/// Runs `f`, and returns a panic as an error.
pub(super) fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    result.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// Returns what identifies a tensor's memory: of a pending buffer that was filled, that which fills it.
pub(super) fn memory_id(tensor: &Tensor) -> usize {
    match tensor.pending_buffer().and_then(PendingBuffer::filled) {
        Some(memory) => Arc::as_ptr(memory).cast::<()>().addr(),
        None => tensor.buffer().identity(),
    }
}

/// Returns whether two tensors are the same view of the same memory.
pub(super) fn is_one(a: &Tensor, b: &Tensor) -> bool {
    memory_id(a) == memory_id(b)
        && a.offset() == b.offset()
        && a.dtype() == b.dtype()
        && a.shape() == b.shape()
        && a.strides() == b.strides()
}

/// Calls `f` with each tensor of an argument.
pub fn for_each_tensor<'a>(arg: ValueRef<'a>, f: &mut impl FnMut(&'a Tensor)) {
    match arg {
        ValueRef::Tensor(tensor) => f(tensor),
        ValueRef::Foreign(object) if object.is_tensor() => {
            if let Ok(tensor) = object.tensor() {
                f(tensor);
            }
        }
        list => list.items().for_each(|item| for_each_tensor(item, f)),
    }
}

/// Returns the error of a kernel that panicked.
fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text =
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
    Error::new(ErrorKind::KernelPanic, format!("a kernel panicked: {text}"))
}
