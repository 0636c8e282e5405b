//! Kernels: a boxed form for every call, and an unboxed form for callers of its exact signature.

use std::any::{Any, TypeId};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_core::Result;

use crate::context::CallContext;
use crate::provenance::Provenance;
use crate::schema::Schema;
use crate::value::Value;

/// A kernel in boxed form. Arguments are borrowed, in declaration order, with defaults.
pub type BoxedFn<V> =
    dyn for<'c, 'a> Fn(&CallContext<'c, V>, &[<V as Value>::Ref<'a>]) -> Result<V> + Send + Sync;

/// A kernel that callers with the same signature (`TypeId`) call without boxing.
///
/// `entry` is a function pointer of the signature's type, `data` its first argument.
#[derive(Clone, Copy)]
struct Unboxed {
    signature: TypeId,
    entry: *const (),
    data: *const (),
}

/// The signature of kernels without an unboxed form, which no caller has.
struct NoSignature;

impl Unboxed {
    fn none() -> Self {
        let nothing = std::ptr::null();
        Unboxed { signature: TypeId::of::<NoSignature>(), entry: nothing, data: nothing }
    }
}

/// Whether the host language's lock (Python's GIL) is released while the kernel runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostLock {
    /// Held: the kernel is short, or needs it. It must not wait for threads that access the host's
    /// objects (that drop a reference to a NumPy array, for example), since these wait for the
    /// lock.
    Keep,
    /// Released if the call's tensors have at least this many elements in total.
    ReleaseFrom(usize),
}

/// A check of the kernel's signature against the schema, at registration.
pub type SignatureCheck = dyn Fn(&Schema) -> Result<()> + Send + Sync;

/// A kernel. It is shared and immutable once registered.
#[repr(C)]
pub struct Kernel<V: Value> {
    // The unboxed form first, since a typed call reads nothing else.
    unboxed: Unboxed,
    boxed: Option<Box<BoxedFn<V>>>,
    provenance: Provenance,
    check: Option<Box<SignatureCheck>>,
    host_lock: HostLock,
    /// The function that the user registered, in a host language.
    payload: Option<Arc<dyn Any + Send + Sync>>,
    removed: AtomicBool,
    /// Whether it is registered as an implicit composite.
    composite: bool,
}

// SAFETY: only `unboxed` has raw pointers. Its data belongs to a `Send + Sync` value that the
// kernel keeps alive (the contract of `with_unboxed`), and is only read.
unsafe impl<V: Value> Send for Kernel<V> {}
// SAFETY: as above.
unsafe impl<V: Value> Sync for Kernel<V> {}

impl<V: Value> Kernel<V> {
    /// Returns a kernel in boxed form.
    #[track_caller]
    pub fn boxed<F>(function: F) -> Self
    where
        F: for<'c, 'a> Fn(&CallContext<'c, V>, &[V::Ref<'a>]) -> Result<V> + Send + Sync + 'static,
    {
        Kernel {
            unboxed: Unboxed::none(),
            boxed: Some(Box::new(function)),
            provenance: Provenance::rust(short_name::<F>(), Location::caller()),
            check: None,
            host_lock: HostLock::Keep,
            payload: None,
            removed: AtomicBool::new(false),
            composite: false,
        }
    }

    /// Returns a fallthrough: calls skip the key.
    #[track_caller]
    pub fn fallthrough() -> Self {
        Kernel {
            unboxed: Unboxed::none(),
            boxed: None,
            provenance: Provenance::rust("fallthrough", Location::caller()),
            check: None,
            host_lock: HostLock::Keep,
            payload: None,
            removed: AtomicBool::new(false),
            composite: false,
        }
    }

    /// Adds an unboxed form.
    ///
    /// # Safety
    /// `entry` is a function pointer of the type that every caller with `signature` transmutes it
    /// to; `data` is valid for it from any thread, as long as the boxed form or the payload lives.
    #[must_use]
    pub unsafe fn with_unboxed(
        mut self,
        signature: TypeId,
        entry: *const (),
        data: *const (),
    ) -> Self {
        self.unboxed = Unboxed { signature, entry, data };
        self
    }

    /// Sets the origin.
    #[must_use]
    pub fn with_provenance(mut self, provenance: Provenance) -> Self {
        self.provenance = provenance;
        self
    }

    /// Sets the name for explanations.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.provenance.name = name.into();
        self
    }

    /// Sets the check of its signature against the operator's schema.
    #[must_use]
    pub fn with_check(
        mut self,
        check: impl Fn(&Schema) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.check = Some(Box::new(check));
        self
    }

    /// Sets the rule for the host language's lock.
    #[must_use]
    pub fn with_host_lock(mut self, host_lock: HostLock) -> Self {
        self.host_lock = host_lock;
        self
    }

    /// Sets the object that the user registered.
    #[must_use]
    pub fn with_payload(mut self, payload: Arc<dyn Any + Send + Sync>) -> Self {
        self.payload = Some(payload);
        self
    }

    /// Returns whether this is a fallthrough.
    pub fn is_fallthrough(&self) -> bool {
        self.boxed.is_none()
    }

    /// Returns whether it is written in terms of other operators (`CompositeImplicitAutograd`). At
    /// an autograd key such a kernel isn't the layer itself: its calls are recorded, so the key
    /// stays included meanwhile.
    pub fn is_composite(&self) -> bool {
        self.composite
    }

    pub(crate) fn set_composite(&mut self) {
        self.composite = true;
    }

    /// Returns the kernel's origin.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Returns the object that the user registered, in a host language.
    pub fn payload(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.payload.as_ref()
    }

    /// Returns the rule for the host language's lock.
    pub fn host_lock(&self) -> HostLock {
        self.host_lock
    }

    /// Returns whether its registration was removed.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn mark_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    pub(crate) fn check_against(&self, schema: &Schema) -> Result<()> {
        match &self.check {
            Some(check) => check(schema),
            None => Ok(()),
        }
    }

    /// Returns function pointer and data of the unboxed form, if it has this signature.
    #[inline(always)]
    pub fn unboxed(&self, signature: TypeId) -> Option<(*const (), *const ())> {
        let unboxed = &self.unboxed;
        (unboxed.signature == signature).then_some((unboxed.entry, unboxed.data))
    }

    /// Returns the data of the unboxed form if its entry is this address. For a calling convention
    /// with one entry for all kernels, comparing addresses identifies it.
    #[inline(always)]
    pub fn unboxed_at(&self, entry: *const ()) -> Option<*const ()> {
        let unboxed = &self.unboxed;
        std::ptr::eq(unboxed.entry, entry).then_some(unboxed.data)
    }

    /// Runs the boxed form, for a binding's own call path. The result isn't checked against the
    /// schema (see [`Operator::check_return`](crate::Operator::check_return)) and may be an
    /// argument's index (see [`Value::as_argument`]).
    ///
    /// # Errors
    /// The kernel's errors.
    #[inline(always)]
    pub fn invoke(&self, context: &CallContext<'_, V>, args: &[V::Ref<'_>]) -> Result<V> {
        match &self.boxed {
            Some(function) => function(context, args),
            None => Err(crate::errors::fallthrough_called(context)),
        }
    }

    /// Runs the boxed form and replaces an argument's index by the argument.
    #[inline(always)]
    pub(crate) fn call(&self, context: &CallContext<'_, V>, args: &[V::Ref<'_>]) -> Result<V> {
        let result = self.invoke(context, args);
        match &result {
            Ok(value) => match value.as_argument() {
                None => result,
                Some(number) => crate::context::argument(context, args, number),
            },
            Err(_) => result,
        }
    }
}

/// Returns a function's name without the path of its type: `scale_cpu`, or `closure` for a closure.
pub(crate) fn short_name<F>() -> String {
    without_path(std::any::type_name::<F>())
}

/// As [`short_name`], of the type's name: compiled once, not for each function.
fn without_path(full: &str) -> String {
    let full = full.split('<').next().unwrap_or(full);
    match full.rsplit("::").next() {
        Some(last) if !last.starts_with('{') => last.to_owned(),
        _ => {
            let mut parts = full.rsplit("::").skip_while(|part| part.starts_with('{'));
            format!("closure in {}", parts.next().unwrap_or("?"))
        }
    }
}

impl<V: Value> fmt::Debug for Kernel<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.provenance)
    }
}
