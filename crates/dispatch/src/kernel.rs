//! Kernels: one boxed form that every call can use, and one unboxed form for callers that
//! know its exact signature.

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

/// A kernel in boxed form: borrowed arguments in declaration order, defaults filled in.
pub type BoxedFn<V> =
    dyn for<'c, 'a> Fn(&CallContext<'c, V>, &[<V as Value>::Ref<'a>]) -> Result<V> + Send + Sync;

/// A kernel called without boxing, by callers whose signature has the same `TypeId`.
///
/// `entry` is a function pointer whose type the signature stands for, `data` its first argument.
#[derive(Clone, Copy)]
struct Unboxed {
    signature: TypeId,
    entry: *const (),
    data: *const (),
}

/// The signature of kernels without an unboxed form. No caller has it.
struct NoSignature;

impl Unboxed {
    fn none() -> Self {
        let nothing = std::ptr::null();
        Unboxed { signature: TypeId::of::<NoSignature>(), entry: nothing, data: nothing }
    }
}

/// Whether the host language's lock is given up while the kernel runs (Python's GIL).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostLock {
    /// Kept: the kernel is short, or needs it. It must not wait for other threads that touch the
    /// host's objects (drop a share in a NumPy array, say): they would wait for this lock.
    Keep,
    /// Released when the call's tensors have at least this many elements together.
    ReleaseFrom(usize),
}

/// What a kernel's signature says of itself, compared with the schema at registration.
pub type SignatureCheck = dyn Fn(&Schema) -> Result<()> + Send + Sync;

/// A kernel, ready to be registered. Shared and immutable once it is.
#[repr(C)]
pub struct Kernel<V: Value> {
    // The unboxed form first: the typed call reads it and nothing else.
    unboxed: Unboxed,
    boxed: Option<Box<BoxedFn<V>>>,
    provenance: Provenance,
    check: Option<Box<SignatureCheck>>,
    host_lock: HostLock,
    /// The function that the user registered, where the host language has one.
    payload: Option<Arc<dyn Any + Send + Sync>>,
    removed: AtomicBool,
    /// Whether it was registered as an implicit composite.
    composite: bool,
}

// SAFETY: `unboxed` is the only field with raw pointers. Its data belongs to a `Send + Sync`
// value that the kernel keeps alive (the contract of `with_unboxed`), and is only read.
unsafe impl<V: Value> Send for Kernel<V> {}
// SAFETY: as above.
unsafe impl<V: Value> Sync for Kernel<V> {}

impl<V: Value> Kernel<V> {
    /// A kernel in boxed form.
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

    /// The mark "this mode has nothing to do here": calls pass the key by.
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

    /// The same kernel with an unboxed form beside the boxed one.
    ///
    /// # Safety
    /// `entry` must be a function pointer of the type that every caller using `signature`
    /// transmutes it to; `data` must be valid for it as long as the boxed form or the payload
    /// lives, from any thread.
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

    /// The same kernel with another origin.
    #[must_use]
    pub fn with_provenance(mut self, provenance: Provenance) -> Self {
        self.provenance = provenance;
        self
    }

    /// The same kernel with a name for explanations.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.provenance.name = name.into();
        self
    }

    /// The same kernel with a check of its signature against the operator's schema.
    #[must_use]
    pub fn with_check(
        mut self,
        check: impl Fn(&Schema) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.check = Some(Box::new(check));
        self
    }

    /// The same kernel with another rule for the host language's lock.
    #[must_use]
    pub fn with_host_lock(mut self, host_lock: HostLock) -> Self {
        self.host_lock = host_lock;
        self
    }

    /// The same kernel carrying the object that the user registered.
    #[must_use]
    pub fn with_payload(mut self, payload: Arc<dyn Any + Send + Sync>) -> Self {
        self.payload = Some(payload);
        self
    }

    /// Whether this is the fallthrough mark.
    pub fn is_fallthrough(&self) -> bool {
        self.boxed.is_none()
    }

    /// Whether it is written in terms of other operators (`CompositeImplicitAutograd`). At an autograd
    /// key such a kernel isn't the layer itself: the calls that it makes are what is recorded, so
    /// the key stays in force meanwhile.
    pub fn is_composite(&self) -> bool {
        self.composite
    }

    pub(crate) fn set_composite(&mut self) {
        self.composite = true;
    }

    /// Where the kernel came from.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// The object that the user registered, where the host language gave one.
    pub fn payload(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.payload.as_ref()
    }

    /// Whether the host language's lock is given up while it runs.
    pub fn host_lock(&self) -> HostLock {
        self.host_lock
    }

    /// Whether its registration was removed.
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

    /// The unboxed form for a signature: the function pointer and its data.
    #[inline(always)]
    pub fn unboxed(&self, signature: TypeId) -> Option<(*const (), *const ())> {
        let unboxed = &self.unboxed;
        (unboxed.signature == signature).then_some((unboxed.entry, unboxed.data))
    }

    /// The data of the unboxed form whose entry is this address: for a convention that has one
    /// entry for all its kernels, which a comparison of addresses finds.
    #[inline(always)]
    pub fn unboxed_at(&self, entry: *const ()) -> Option<*const ()> {
        let unboxed = &self.unboxed;
        std::ptr::eq(unboxed.entry, entry).then_some(unboxed.data)
    }

    /// Runs the boxed form, for a binding's own call path. The result is as the kernel gave it: not
    /// checked against the schema (see [`Operator::check_return`](crate::Operator::check_return)),
    /// and perhaps the number of an argument (see [`Value::as_argument`]).
    ///
    /// # Errors
    /// What the kernel returns.
    #[inline(always)]
    pub fn invoke(&self, context: &CallContext<'_, V>, args: &[V::Ref<'_>]) -> Result<V> {
        match &self.boxed {
            Some(function) => function(context, args),
            None => Err(crate::errors::fallthrough_called(context)),
        }
    }

    /// Runs the boxed form; an argument that it returns by number is put in its place.
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

/// A function's own name out of its type's path: `scale_cpu`, or `closure` for a closure.
pub(crate) fn short_name<F>() -> String {
    let full = std::any::type_name::<F>();
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
