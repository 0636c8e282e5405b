//! Recording: what becomes of a call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{
    CallContext, DispatchKey, DispatchKeySet, LocalGuard, LocalKeys, Operator, Tags, Value as _,
    call_path, include_keys_with, inside_layers, local_data, outside_layers,
};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::errors::{hidden_object, hidden_value, hidden_view, unseen_result};
use super::ir::{Arg, Argument, Constant, Graph, IN_KIND, Info, Input, Node, ValueId};
use super::known::{Across, BatchAt, Known, Seen};
use super::shares::Shares;

/// Sessions that are recording, in the whole process: none, and nobody need ask further.
static RECORDING: AtomicUsize = AtomicUsize::new(0);

/// A recording: the object behind the key Tracer, from [`Session::begin`] to [`Session::finish`].
///
/// A session that began while another was recording hands on what it sees, so that both record.
#[derive(Debug)]
pub struct Session {
    state: Mutex<State>,
    outer: Option<Arc<Session>>,
}

#[derive(Debug)]
struct State {
    open: bool,
    graph: Graph,
    known: Known,
    /// Whether a value follows from the inputs or from random numbers, by its place.
    varies: Vec<bool>,
}

/// An argument tree whose tensors were looked at.
enum Looked {
    Tensor(Box<Seen>),
    List(Vec<Looked>),
    Literal(Box<Value>),
}

impl Looked {
    fn at(value: ValueRef<'_>) -> Result<Looked> {
        if let Some(seen) = Seen::look(value)? {
            return Ok(Looked::Tensor(Box::new(seen)));
        }
        if value.list_len().is_some() {
            return Ok(Looked::List(value.items().map(Looked::at).collect::<Result<_>>()?));
        }
        Ok(Looked::Literal(Box::new(Value::from_ref(value)?)))
    }
}

/// A call that was seen and hasn't returned yet.
pub(super) struct Pending {
    node: Node,
    varies: bool,
    /// How many results the schema declares.
    returns: usize,
}

impl Session {
    /// A new recording, inside the one that is open here, if one is.
    pub fn begin() -> Arc<Session> {
        let outer = active();
        RECORDING.fetch_add(1, Ordering::Relaxed);
        let (graph, known, varies) = (Graph::default(), Known::default(), Vec::new());
        let state = State { open: true, graph, known, varies };
        Arc::new(Session { state: Mutex::new(state), outer })
    }

    /// The key that switches a recording on, for a host language's own guard with the session as its
    /// data.
    pub fn keys() -> DispatchKeySet {
        DispatchKey::Tracer.into()
    }

    /// Records the calls on this thread while the guard lives.
    pub fn enter(self: &Arc<Self>) -> LocalGuard {
        let session: Arc<Session> = Arc::clone(self);
        include_keys_with(Session::keys(), session)
    }

    /// Makes a tensor the next input, and gives the tensor to call the function with: this one, or
    /// a copy where the same data is an input already, since nothing would tell the two apart.
    ///
    /// # Errors
    /// Where such a copy can't be made.
    pub fn input(&self, tensor: &Tensor, name: &str) -> Result<Tensor> {
        let mut tensor = tensor.clone();
        let mut seen = Seen::own(&tensor);
        let is_known = self.lock().known.find(&seen).is_some();
        if is_known {
            let copy = tensor.copy()?;
            copy.set_requires_grad(tensor.requires_grad())?;
            (tensor, seen) = (copy.clone(), Seen::own(&copy));
        }
        let mut state = self.lock();
        let id = state.value(seen.info.clone(), true);
        state.known.vary(&seen);
        state.known.insert(seen, id);
        state.graph.inputs.push(Input { id, name: name.to_owned() });
        Ok(tensor)
    }

    /// Makes an object of a class of the host language's own the next input.
    ///
    /// # Errors
    /// [`ErrorKind::Trace`] for an object that is an input already, since nothing would tell the two
    /// apart.
    pub fn input_object(&self, object: Value, name: &str) -> Result<()> {
        let Some(seen) = Seen::look(object.as_ref())? else { return Ok(()) };
        let mut state = self.lock();
        if state.known.find(&seen).is_some() {
            drop(state);
            let message = format!(
                "{name}: the object is an argument already, and nothing would tell the two apart: \
                 give a copy ({})",
                Value::describe(object.as_ref())
            );
            return Err(Error::new(ErrorKind::Trace, message));
        }
        let id = state.value(seen.info.clone(), true);
        state.known.vary(&seen);
        state.known.insert(seen, id);
        state.graph.inputs.push(Input { id, name: name.to_owned() });
        Ok(())
    }

    /// Ends the recording with what the function returned.
    ///
    /// # Errors
    /// [`ErrorKind::Trace`] for a view of a traced tensor that no operator made.
    pub fn finish(&self, outputs: &[ValueRef<'_>]) -> Result<Graph> {
        let looked = outputs.iter().map(|value| Looked::at(*value)).collect::<Result<Vec<_>>>()?;
        let mut done = Vec::new();
        let (mut graph, kept, outputs) = {
            let mut state = self.lock();
            let mut args = Vec::with_capacity(looked.len());
            let mut failed = None;
            for value in looked {
                match state.arg(value, &mut done) {
                    Ok(arg) => args.push(arg.0),
                    Err(error) => failed = Some(error.at("the function's result")),
                }
            }
            state.close();
            let graph = std::mem::take(&mut state.graph);
            (graph, state.known.take(), failed.map_or(Ok(args), Err))
        };
        // Without the lock: what was kept may be the last share of an object of the host language.
        drop(kept);
        graph.outputs = outputs?;
        Ok(graph.numbered())
    }

    /// Ends the recording without a graph: the function failed.
    pub fn abandon(&self) {
        let left = {
            let mut state = self.lock();
            state.close();
            (std::mem::take(&mut state.graph), state.known.take())
        };
        drop(left);
    }

    /// Whether a tensor is a value of the graph or shares memory with one, constants left aside.
    fn varies(&self, seen: &Seen) -> bool {
        let state = self.lock();
        if !state.open {
            return false;
        }
        let found = state.known.find(seen).is_some_and(|id| state.varies[id.index()]);
        found || state.known.varies(seen)
    }

    /// Notes a call before it is made, since it may change its arguments.
    fn before(&self, operator: &Operator<Value>, args: &[ValueRef<'_>]) -> Result<Option<Pending>> {
        let looked = args.iter().map(|value| Looked::at(*value)).collect::<Result<Vec<_>>>()?;
        let schema = operator.schema();
        // Declared before the lock, so that it is dropped without it.
        let mut done = Vec::new();
        let mut state = self.lock();
        if !state.open {
            return Ok(None);
        }
        let mut varies = false;
        let mut arguments = Vec::with_capacity(args.len());
        for (at, (value, declared)) in looked.into_iter().zip(&schema.arguments).enumerate() {
            let given = state.arg(value, &mut done).map_err(|error| {
                error.at(&format!("{}: argument '{}'", operator.name(), declared.name))
            })?;
            varies |= given.1;
            arguments.push(Argument {
                name: declared.name.clone(),
                is_default: operator.default_value(at).is_some_and(|d| same(&given.0, d.as_ref())),
                arg: given.0,
                written: declared.alias.as_ref().is_some_and(|alias| alias.write),
            });
        }
        let random = operator.tags().contains(Tags::NONDETERMINISTIC_SEEDED)
            || schema.arguments.iter().any(|argument| *argument.ty.base() == Type::Generator);
        let writes = arguments.iter().any(|argument| argument.written);
        let node = Node {
            operator: operator.name().to_owned(),
            args: arguments,
            results: Vec::new(),
            effects: random || writes || schema.returns.is_empty(),
        };
        Ok(Some(Pending { node, varies: varies || random, returns: schema.returns.len() }))
    }

    /// Adds a call that returned.
    fn after(&self, pending: Pending, args: &[ValueRef<'_>], result: &Value) -> Result<()> {
        let Pending { mut node, varies, returns } = pending;
        let results = match result {
            Value::Tuple(items) => {
                items.iter().map(|item| Looked::at(item.as_ref())).collect::<Result<Vec<_>>>()?
            }
            _ if returns == 0 => Vec::new(),
            one => vec![Looked::at(one.as_ref())?],
        };
        let mut written = Vec::new();
        for (_, value) in node.args.iter().zip(args).filter(|(argument, _)| argument.written) {
            written.extend(Seen::look(*value)?);
        }
        let mut state = self.lock();
        if !state.open {
            return Ok(());
        }
        for seen in &written {
            // What is written to a constant is there at the next replay.
            if varies || state.known.lasts(seen) {
                state.known.vary(seen);
            }
        }
        node.results = results.into_iter().map(|value| state.result(value, varies)).collect();
        state.graph.nodes.push(node);
        Ok(())
    }

    /// Records that an object of a class of the host language's own was made of a tensor, like another
    /// one, by the class's own way to do that.
    fn wrapped(&self, tensor: &Seen, like: &Seen, made: Seen) {
        let mut state = self.lock();
        let (Some(x), Some(like)) = (state.known.find(tensor), state.known.find(like)) else {
            return;
        };
        let varies = state.varies[x.index()] || state.varies[like.index()];
        let argument = |name: &str, id| Argument {
            name: name.to_owned(),
            arg: Arg::Value(id),
            is_default: false,
            written: false,
        };
        let args = vec![argument("x", x), argument("like", like)];
        let results = vec![state.result(Looked::Tensor(Box::new(made)), varies)];
        let operator = IN_KIND.to_owned();
        state.graph.nodes.push(Node { operator, args, results, effects: false });
    }

    /// Notes a tensor that the graph of derivatives keeps.
    fn hide(&self, seen: &Seen) {
        let mut state = self.lock();
        if state.open {
            state.known.hide(seen);
        }
    }

    /// Shows what it keeps.
    fn add_shares(&self, shares: &mut Shares<'_>) {
        let state = self.lock();
        state.known.kept_of(shares.of).for_each(|kept| shares.add(kept));
    }

    /// An error for a result that no recorded call has made.
    fn check_known(&self, operator: &Operator<Value>, result: &Value) -> Result<()> {
        match result {
            Value::Tuple(items) | Value::List(items) => {
                return items.iter().try_for_each(|item| self.check_known(operator, item));
            }
            _ => {}
        }
        let Some(seen) = Seen::look(result.as_ref())? else { return Ok(()) };
        let is_known = {
            let state = self.lock();
            !state.open
                || state.known.find(&seen).or(state.known.across(&seen).map(|a| a.from)).is_some()
        };
        if is_known { Ok(()) } else { Err(unseen_result(operator.name(), &seen.info)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This session and those that it began in, innermost first.
    fn chain(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Session>> {
        std::iter::successors(Some(self), |session| session.outer.as_ref())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).close();
    }
}

impl State {
    fn close(&mut self) {
        if std::mem::replace(&mut self.open, false) {
            RECORDING.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn value(&mut self, info: Info, varies: bool) -> ValueId {
        let id = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(info);
        self.varies.push(varies);
        id
    }

    /// What an argument is in the graph, and whether it follows from the inputs. A tensor that
    /// wasn't seen before is a constant. What isn't kept goes to `done`, for dropping it may need
    /// the lock of the host language.
    fn arg(&mut self, value: Looked, done: &mut Vec<Seen>) -> Result<(Arg, bool)> {
        Ok(match value {
            Looked::Literal(value) => (Arg::Literal(value), false),
            Looked::List(items) => {
                let items: Vec<_> =
                    items.into_iter().map(|item| self.arg(item, done)).collect::<Result<_>>()?;
                let varies = items.iter().any(|item| item.1);
                (Arg::List(items.into_iter().map(|item| item.0).collect()), varies)
            }
            Looked::Tensor(seen) => {
                if let Some(id) = self.known.find(&seen) {
                    let varies = self.varies[id.index()] || self.known.varies(&seen);
                    done.push(*seen);
                    return Ok((Arg::Value(id), varies));
                }
                if let Some(across) = self.known.across(&seen) {
                    let id = self.across_batches(across)?;
                    let varies = self.varies[id.index()];
                    self.known.insert(*seen, id);
                    return Ok((Arg::Value(id), varies));
                }
                if self.known.varies(&seen) {
                    let error = match seen.registered() {
                        Some(object) => hidden_object(&object),
                        None => hidden_view(&seen.info),
                    };
                    done.push(*seen);
                    return Err(error);
                }
                if self.known.hides(&seen) {
                    let error = hidden_value(&seen.info);
                    done.push(*seen);
                    return Err(error);
                }
                let id = self.value(seen.info.clone(), false);
                self.graph.constants.push(Constant { id, value: seen.keep.clone() });
                self.known.last(&seen);
                self.known.insert(*seen, id);
                (Arg::Value(id), false)
            }
        })
    }

    /// Layers below Vmap compute with whole batches, which the graph may know by their examples, and
    /// make examples of batches that it knows: a call that enters or leaves the batch says so.
    fn across_batches(&mut self, across: Across) -> Result<ValueId> {
        let number = |name: &str, number: usize| Argument {
            name: name.to_owned(),
            arg: Arg::literal(Value::Int(number as i64)),
            is_default: false,
            written: false,
        };
        let mut last = across.from;
        for BatchAt { level, dim, size } in across.steps {
            let x = Argument {
                name: "x".to_owned(),
                arg: Arg::Value(last),
                is_default: false,
                written: false,
            };
            let mut info = self.graph.info(last).clone();
            let (level, at) = (number("level", level), number("dim", dim));
            let (operator, args, place) = if across.enters {
                info.shape.remove(dim);
                ("keyfold::vmap_enter", vec![x, at, level], self.graph.nodes.len())
            } else {
                info.shape.insert(dim, size)?;
                // Right after it was made: the vmap may have ended since.
                let maker = self.graph.nodes.iter().rposition(|node| node.makes().contains(&last));
                let args = vec![x, level, at, number("size", size)];
                ("keyfold::vmap_exit", args, maker.map_or(0, |at| at + 1))
            };
            last = self.value(info, self.varies[last.index()]);
            let results = vec![Arg::Value(last)];
            let node = Node { operator: operator.to_owned(), args, results, effects: false };
            self.graph.nodes.insert(place, node);
        }
        Ok(last)
    }

    /// What a result is in the graph: its tensors are new values.
    fn result(&mut self, value: Looked, varies: bool) -> Arg {
        match value {
            Looked::Literal(value) => Arg::Literal(value),
            Looked::List(items) => {
                Arg::List(items.into_iter().map(|item| self.result(item, varies)).collect())
            }
            Looked::Tensor(seen) => {
                let id = self.value(seen.info.clone(), varies);
                if varies {
                    self.known.vary(&seen);
                }
                self.known.insert(*seen, id);
                Arg::Value(id)
            }
        }
    }
}

/// Whether an argument is this default.
fn same(arg: &Arg, default: ValueRef<'_>) -> bool {
    match arg {
        Arg::Value(_) => false,
        Arg::Literal(value) => format!("{:?}", (**value).as_ref()) == format!("{default:?}"),
        Arg::List(items) => {
            default.list_len() == Some(items.len())
                && items.iter().zip(default.items()).all(|(item, default)| same(item, default))
        }
    }
}

/// The session that records calls on this thread now: none inside a kernel, or where the key is
/// excluded.
fn active() -> Option<Arc<Session>> {
    if RECORDING.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let keys = LocalKeys::current();
    let on = (keys.included() - keys.excluded()).contains(DispatchKey::Tracer);
    if on { local_data() } else { None }
}

/// Whether the calls that this one comes to are recorded in its place: gradients go back through
/// those, where they are calls on whole batches or the calls of a composite.
fn is_recorded_inside(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> bool {
    let keys = context.keyset();
    let tags = args.iter().map(|arg| Value::tag(*arg).keys());
    let brought = tags.fold(DispatchKeySet::EMPTY, DispatchKeySet::union);
    if !(keys & brought).contains(DispatchKey::Autograd) {
        return false;
    }
    (keys & brought).contains(DispatchKey::Vmap)
        || context.operator().is_composite_at(DispatchKey::Autograd, keys)
}

/// Makes a call for the layer: records it in the open session and those around it.
pub(super) fn record(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let call = || context.call_below(args);
    if RECORDING.load(Ordering::Relaxed) == 0 {
        return call();
    }
    let Some(session) = local_data::<Session>() else { return call() };
    let operator = context.operator();
    if is_recorded_inside(context, args) {
        let result = outside_layers(DispatchKey::Tracer.into(), call)?;
        session.chain().try_for_each(|session| session.check_known(operator, &result))?;
        return Ok(result);
    }
    let mut pending = Vec::new();
    for session in session.chain() {
        if let Some(seen) = session.before(operator, args)? {
            pending.push((session, seen));
        }
    }
    let result = call()?;
    for (session, seen) in pending {
        session.after(seen, args, &result)?;
    }
    Ok(result)
}

/// Notes a tensor that the graph of derivatives keeps: where no recorded call has made it, using it
/// later is an error instead of a constant.
pub(crate) fn note_kept(tensor: &Tensor) {
    if is_recording()
        && let Some(session) = local_data::<Session>()
    {
        let seen = || Seen::own(tensor);
        session.chain().for_each(|session| session.hide(&seen()));
    }
}

/// How many shares of a tensor's memory the recordings on this thread keep, so that its address isn't
/// used again: nobody reads or writes through them while the function runs.
pub(crate) fn kept_shares(tensor: &Tensor) -> usize {
    if !is_recording() {
        return 0;
    }
    let Some(session) = local_data::<Session>() else { return 0 };
    let mut shares = Shares::of(tensor);
    session.chain().for_each(|session| session.add_shares(&mut shares));
    shares.count()
}

/// Notes that a binding made `made` of a tensor, an object of the class of `like`: a replay does so,
/// too.
///
/// # Errors
/// When an object can't be kept.
pub fn note_wrapped(tensor: &Tensor, like: &Value, made: &Value) -> Result<()> {
    // A binding wraps a result while the traced call still runs, where the tracer's own key is off.
    let at_tracer = call_path().last().is_some_and(|(_, key)| *key == DispatchKey::Tracer);
    let keys = if at_tracer { DispatchKey::Tracer.into() } else { DispatchKeySet::EMPTY };
    let Some(session) = outside_layers(keys, active) else { return Ok(()) };
    for session in session.chain() {
        // Looking may run code of the class, which may read what is traced.
        let look = |value: &Value| {
            inside_layers(DispatchKey::Tracer.into(), || Seen::look(value.as_ref()))
        };
        let (Some(like), Some(made)) = (look(like)?, look(made)?) else { return Ok(()) };
        session.wrapped(&Seen::own(tensor), &like, made);
    }
    Ok(())
}

/// Whether any session records anywhere: without one, nothing needs to be asked about reading.
///
/// As [`is_recording_here`], but of all threads, which takes one load.
#[inline]
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed) != 0
}

/// Whether calls on this thread are recorded now.
pub fn is_recording_here() -> bool {
    active().is_some()
}

/// Refuses to let a host language read a tensor that follows from the inputs of a trace that is
/// recorded here: what it does with the numbers never gets into the graph. `what` names what was
/// asked for, `bool()` say. Inside an operator's kernel, and where the key Tracer is excluded, reading
/// is free.
///
/// # Errors
/// [`ErrorKind::Trace`], saying what to do instead.
pub fn check_readable(tensor: &Tensor, what: &str) -> Result<()> {
    let Some(session) = active() else { return Ok(()) };
    let seen = Seen::tensor(tensor, Value::None);
    if !session.chain().any(|session| session.varies(&seen)) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Trace,
        format!(
            "{what}: the tensor ({}) follows from the inputs of the trace that is being recorded, \
             and what the function does with its numbers would stay as it is now for all later \
             inputs; choose element by element with keyfold.where, or trace each branch as a \
             function of its own and choose outside",
            seen.info
        ),
    ))
}
