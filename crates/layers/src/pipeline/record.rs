//! Recording of calls, at the key Deferred.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result, layout};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{CallContext, DispatchKey, LocalContext, Tags, Value as _, local_data};
use keyfold_tensor::device::current_stream;
use keyfold_tensor::{PendingBuffer, Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::compute::compute;
use super::decide::{Decision, Form, Infer, decide};
use super::host::{self, Site};
use super::operation::{Context, Operation, Slot, Structure, for_each_tensor, memory_id};
use super::session::{Session, State};

thread_local! {
    /// The calls at the key Pipeline that this thread is in.
    static RECORDING: Cell<u32> = const { Cell::new(0) };
    /// The line of the outermost of them.
    static SITE: RefCell<Option<Site>> = const { RefCell::new(None) };
}

/// Runs a call at the key Pipeline: notes the line for the calls that are recorded below.
pub(super) fn at_pipeline(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> Result<Value> {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            RECORDING.set(RECORDING.get() - 1);
            if self.0 {
                // A thread that ends has no line any more.
                let old = SITE.try_with(|site| site.borrow_mut().take());
                drop(old);
            }
        }
    }
    let Some(session) = local_data::<Session>() else {
        return Err(Error::new(
            ErrorKind::Pipeline,
            format!(
                "{}: the key Pipeline is included, but no pipeline is open here; use `with \
                 keyfold.pipeline():`",
                context.operator().name()
            ),
        ));
    };
    if !session.is_open() {
        return context.call_below(args);
    }
    drop(session);
    let depth = RECORDING.get();
    let is_outermost = depth == 0;
    if is_outermost {
        let site = host::site();
        let _ = SITE.try_with(|known| *known.borrow_mut() = site);
    }
    RECORDING.set(depth + 1);
    let _leave = Leave(is_outermost);
    context.call_below(args)
}

/// Runs a call at the key Deferred. `infer` is the operator's own, if it has one.
pub(super) fn at_deferred(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    infer: Option<&Infer>,
) -> Result<Value> {
    let session = local_data::<Session>().filter(|session| session.is_open());
    let Some(session) = session else { return compute(context, args, None) };
    if RECORDING.get() == 0 || session.lock().is_run_here() {
        return compute(context, args, Some(&session));
    }
    match decide(context, args, infer)? {
        Decision::AtOnce(reason) if session.only_records => {
            Err(session
                .refuse(&format!("{} can't be recorded: {reason}", context.operator().name())))
        }
        Decision::AtOnce(reason) => {
            session.note_at_once(context.operator().name(), reason);
            compute(context, args, Some(&session))
        }
        Decision::Below => compute(context, args, Some(&session)),
        Decision::View => view(context, args),
        Decision::Record(forms, structure) => record(&session, context, args, forms, structure),
    }
}

/// Makes views of pending tensors, which are pending tensors of the same memory.
fn view(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let mut waits = false;
    args.iter().for_each(|arg| for_each_tensor(*arg, &mut |tensor| waits |= tensor.is_pending()));
    if !waits {
        return compute(context, args, None);
    }
    let result = context.call_below(args)?;
    mark(&result)?;
    Ok(result)
}

/// Adds the key to results over pending memory.
fn mark(value: &Value) -> Result<()> {
    match value {
        Value::Tensor(tensor) if tensor.buffer().pending().is_some() => {
            tensor.insert_key(DispatchKey::Deferred)
        }
        Value::List(items) | Value::Tuple(items) => items.iter().try_for_each(mark),
        _ => Ok(()),
    }
}

/// Returns an argument to keep, and the bytes that were copied for it: arrays of other libraries are
/// copied, since their writes can't be seen.
fn keep(session: &Session, arg: ValueRef<'_>, copied: &mut u64) -> Result<Value> {
    match arg {
        ValueRef::Tensor(tensor) => keep_tensor(session, tensor, copied),
        ValueRef::Foreign(object) => keep_tensor(session, object.tensor()?, copied),
        list if list.list_len().is_some() => {
            let items = list.items().map(|item| keep(session, item, copied));
            Ok(Value::List(items.collect::<Result<_>>()?))
        }
        other => Value::from_ref(other),
    }
}

fn keep_tensor(session: &Session, tensor: &Tensor, copied: &mut u64) -> Result<Value> {
    let buffer = tensor.buffer();
    // A recording reads what is there when it is replayed.
    if buffer.is_lent() && !session.only_records {
        *copied += tensor.nbytes() as u64;
        return Ok(Value::Tensor(tensor.copy()?));
    }
    if buffer.pending().is_some_and(|pending| !pending.is_pending())
        && let Some(done) = tensor.completed()?
    {
        return Ok(Value::Tensor(done));
    }
    Ok(Value::Tensor(tensor.clone()))
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

fn record(
    session: &Arc<Session>,
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    forms: Vec<Option<Form>>,
    structure: Structure,
) -> Result<Value> {
    let operator = context.operator();
    let mut bytes = 0;
    let kept =
        args.iter().map(|arg| keep(session, *arg, &mut bytes)).collect::<Result<Vec<_>>>()?;
    foreign_pending(session, &kept)?;
    let device = device_of(context, args);
    let (mut results, mut evaluates, mut rows) = (SmallVec::new(), None, 0);
    let mut values = Vec::with_capacity(forms.len());
    for form in forms {
        let Some(form) = form else {
            results.push(None);
            values.push(Value::None);
            continue;
        };
        let Form { shape, dtype, strides, .. } = form;
        (evaluates, rows) = (form.evaluates, form.rows);
        let size = layout::numel(&shape, dtype.size())? * dtype.size();
        let memory = Arc::new(PendingBuffer::new(device, size, session.as_source()));
        results.push(Some(Slot { memory: Arc::downgrade(&memory), shape: shape.clone(), dtype }));
        values.push(Value::Tensor(Tensor::pending(memory, shape, strides, dtype)?));
        bytes += size as u64;
    }
    let arguments = &operator.schema().arguments;
    let written = match structure {
        Structure::Written(_) => {
            let is_written = |at: &usize| arguments[*at].alias.as_ref().is_some_and(|a| a.write);
            (0..arguments.len()).filter(is_written).collect()
        }
        _ => SmallVec::new(),
    };
    let mut versions = SmallVec::new();
    for arg in &kept {
        for_each_tensor(arg.as_ref(), &mut |tensor| {
            if tensor.buffer().pending().is_none() {
                versions.push(tensor.version());
            }
        });
    }
    let is_random = operator.tags().contains(Tags::NONDETERMINISTIC_SEEDED)
        || arguments.iter().any(|argument| *argument.ty.base() == Type::Generator);
    let mut operation = Operation {
        index: 0,
        operator: operator.share(),
        keyset: context.keyset().remove(DispatchKey::Deferred),
        context: Context(Arc::default()),
        site: SITE.try_with(|site| site.borrow().clone()).ok().flatten(),
        device,
        stream: (!device.kind().is_host()).then(|| (device, current_stream(device))),
        evaluates,
        rows,
        args: std::sync::Mutex::new(kept),
        versions,
        results,
        structure,
        written,
        after: SmallVec::new(),
        bytes,
        is_pure: !is_random && !matches!(structure, Structure::Written(_)),
    };
    let full = {
        let mut state = session.lock();
        operation.context = state.local_context();
        operation.index = state.waiting.next();
        state.order(&mut operation, is_random);
        session.start_clock(&mut state);
        state.pending_bytes += bytes;
        state.statistics.recorded += 1;
        state.waiting.push(Arc::new(operation));
        state.waiting.len() >= session.options.max_ops
            || state.pending_bytes >= session.options.max_pending_bytes
    };
    if let Structure::Written(at) = structure {
        for (argument, arg) in arguments.iter().zip(args) {
            if argument.alias.as_ref().is_some_and(|alias| alias.write) {
                for_each_tensor(*arg, &mut |tensor| tensor.note_write());
            }
        }
        if full {
            session.run_all()?;
        }
        return Ok(Value::Argument(at));
    }
    if full {
        session.run_all()?;
    }
    Ok(match structure {
        Structure::List => Value::List(values),
        Structure::Tuple => Value::Tuple(values),
        _ => values.pop().unwrap_or(Value::None),
    })
}

/// Runs what arguments wait for in other pipelines, those of other threads.
fn foreign_pending(session: &Arc<Session>, kept: &[Value]) -> Result<()> {
    let mut failed = None;
    for arg in kept {
        for_each_tensor(arg.as_ref(), &mut |tensor| {
            if let Some(pending) = tensor.buffer().pending()
                && pending.is_pending()
                && !pending.source().is_some_and(|source| session.is_source(&*source))
                && let Err(error) = pending.wait()
            {
                failed.get_or_insert(error);
            }
        });
    }
    failed.map_or(Ok(()), Err)
}

impl State {
    /// Returns the context of an operation, shared with the one before if they are equal.
    fn local_context(&mut self) -> Context {
        let shared = match &self.context {
            Some(last) if last.is_current_without::<Session>() => Arc::clone(last),
            _ => Arc::new(LocalContext::current().without::<Session>()),
        };
        self.context = Some(Arc::clone(&shared));
        Context(shared)
    }

    /// Notes the memory that an operation uses, and what it has to run after.
    fn order(&mut self, operation: &mut Operation, is_random: bool) {
        let index = operation.index;
        let args = operation.args.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (waiting, uses, after) = (&self.waiting, &mut self.uses, &mut operation.after);
        for (at, arg) in args.iter().enumerate() {
            let writes = operation.written.contains(&at);
            for_each_tensor(arg.as_ref(), &mut |tensor| {
                let known = uses.entry(memory_id(tensor)).or_default();
                after.extend(known.writer);
                if writes {
                    after.extend(known.readers.drain(..));
                    known.writer = Some(index);
                } else {
                    known.readers.push(index);
                }
            });
        }
        for slot in operation.results.iter().flatten() {
            let identity = slot.memory.as_ptr().addr();
            uses.entry(identity).or_default().writer = Some(index);
        }
        if is_random {
            after.extend(self.last_random.replace(index));
        }
        after.sort_unstable();
        after.dedup();
        after.retain(|before| *before != index && waiting.get(*before).is_some());
    }
}
