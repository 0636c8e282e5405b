//! Recording: what becomes of a call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{
    DispatchKey, DispatchKeySet, LocalGuard, LocalKeys, Operator, Value as _, include_keys_with,
    local_data,
};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::ir::{Arg, Argument, Constant, Graph, Info, Input, Node, ValueId};
use super::known::{Known, Seen};

/// Sessions that are recording, in the whole process: none, and nobody need ask further.
static RECORDING: AtomicUsize = AtomicUsize::new(0);

/// Operators whose results differ from call to call, beside those that take a generator.
const RANDOM: [&str; 8] = [
    "aten::rand",
    "aten::randn",
    "aten::randint",
    "aten::randperm",
    "aten::normal",
    "aten::uniform",
    "aten::bernoulli",
    "aten::dropout",
];

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
        let random = RANDOM.contains(&&*schema.name.qualified())
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
                if let Some(id) = self.across_a_batch(&seen) {
                    let varies = self.varies[id.index()];
                    self.known.insert(*seen, id);
                    return Ok((Arg::Value(id), varies));
                }
                if self.known.varies(&seen) {
                    let error = hidden_view(&seen.info);
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

    /// Layers below Vmap compute with whole batches, which the graph knows by their examples, and
    /// make examples of batches that it knows: a call that enters or leaves the batch says so.
    fn across_a_batch(&mut self, seen: &Seen) -> Option<ValueId> {
        let number = |name: &str, number: usize| Argument {
            name: name.to_owned(),
            arg: Arg::literal(Value::Int(number as i64)),
            is_default: false,
            written: false,
        };
        let tensor = |id: ValueId| Argument {
            name: "x".to_owned(),
            arg: Arg::Value(id),
            is_default: false,
            written: false,
        };
        let (operator, args, from, at) = if let Some((id, level, dim)) = self.known.batch_of(seen) {
            let args = vec![tensor(id), number("dim", dim), number("level", level)];
            ("keyfold::vmap_enter", args, id, self.graph.nodes.len())
        } else {
            let (id, level, dim, size) = self.known.example_of(seen)?;
            let (level, dim) = (number("level", level), number("dim", dim));
            // Right after it was made: the vmap may have ended since.
            let maker = self.graph.nodes.iter().rposition(|node| node.makes().contains(&id));
            let args = vec![tensor(id), level, dim, number("size", size)];
            ("keyfold::vmap_exit", args, id, maker.map_or(0, |at| at + 1))
        };
        let id = self.value(seen.info.clone(), self.varies[from.index()]);
        let results = vec![Arg::Value(id)];
        let node = Node { operator: operator.to_owned(), args, results, effects: false };
        self.graph.nodes.insert(at, node);
        Some(id)
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

#[cold]
fn hidden_view(info: &Info) -> Error {
    Error::new(
        ErrorKind::Trace,
        format!(
            "{info} shares memory with a traced tensor without being made of it by an operator, so \
             the graph doesn't know where it comes from; make views with operators or Tensor's own \
             methods, and give the function an array that shares memory with another as a copy"
        ),
    )
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

/// Makes a call for the layer: records it in the open session and those around it.
pub(super) fn record(
    operator: &Operator<Value>,
    args: &[ValueRef<'_>],
    call: impl FnOnce() -> Result<Value>,
) -> Result<Value> {
    if RECORDING.load(Ordering::Relaxed) == 0 {
        return call();
    }
    let Some(session) = local_data::<Session>() else { return call() };
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
