//! Typed calls: a handle whose signature was checked once and that boxes nothing.
//!
//! `Dispatcher::typed::<(&Tensor, f64), Tensor>("demo::scale")` returns a handle whose `call` takes
//! a `&Tensor` and an `f64`. It calls a kernel registered from a closure of the same signature with
//! one indirect call, and any other kernel in its boxed form.

#![allow(clippy::extra_unused_lifetimes, reason = "the arguments' lifetime, at arity 0")]

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use crate::context::CallContext;
use crate::dispatcher::Dispatcher;
use crate::kernel::{Kernel, short_name};
use crate::keyset::DispatchKeySet;
use crate::operator::Operator;
use crate::provenance::Provenance;
use crate::schema::{Argument, Schema};
use crate::value::{Arg, Ret, Tag, Value};

/// A typed handle of an operator: `A` is a tuple of [`Arg`] types, `R` a [`Ret`] type.
pub struct TypedOperator<V: Value, A, R> {
    operator: Arc<Operator<V>>,
    signature: PhantomData<fn(A) -> R>,
}

impl<V: Value, A, R> Clone for TypedOperator<V, A, R> {
    fn clone(&self) -> Self {
        TypedOperator { operator: Arc::clone(&self.operator), signature: PhantomData }
    }
}

impl<V: Value, A, R> fmt::Debug for TypedOperator<V, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.operator, f)
    }
}

impl<V: Value, A, R> TypedOperator<V, A, R> {
    /// Returns the operator.
    pub fn operator(&self) -> &Arc<Operator<V>> {
        &self.operator
    }
}

/// A tuple of argument types, checked against a schema as a whole.
pub trait Args<V: Value>: 'static {
    /// The arguments' types in the kernel.
    type Of<'a>;

    /// Converts boxed values to the arguments.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] for another number of values, and as [`Arg::unbox`].
    fn unbox<'a>(args: &[V::Ref<'a>]) -> Result<Self::Of<'a>>;

    /// Returns the entry of the unboxed form of a kernel that takes these arguments as one tuple.
    fn entry<R: Ret<V>, F>() -> *const ()
    where
        F: for<'a> Fn(Self::Of<'a>) -> Result<R>;

    /// Checks that each type fits the schema's argument at its index.
    ///
    /// # Errors
    /// The index of the first argument that doesn't fit, and the name of its Rust type.
    fn check(arguments: &[Argument]) -> Result<(), Misfit>;
}

/// A difference between a signature and a schema.
#[derive(Debug, Clone, Copy)]
pub enum Misfit {
    /// The signature's number of arguments differs.
    Arity(usize),
    /// The Rust type at that index doesn't fit.
    Type(usize, &'static str),
}

/// A function that can be a typed kernel: `Fn(A...) -> Result<R>`.
pub trait TypedKernel<V: Value, A, R>: Send + Sync + 'static {
    /// Makes the kernel, with its unboxed form, its boxed form and its check.
    #[track_caller]
    fn into_kernel(self) -> Kernel<V>;
}

/// A typed kernel that also takes the call's context: `Fn(&CallContext, A...) -> Result<R>`.
pub trait ContextKernel<V: Value, A, R>: Send + Sync + 'static {
    /// Makes the kernel, with its unboxed form, its boxed form and its check.
    #[track_caller]
    fn into_context_kernel(self) -> Kernel<V>;
}

impl<V: Value> Kernel<V> {
    /// Returns a kernel from a function with a typed signature.
    #[track_caller]
    pub fn typed<A, R, F: TypedKernel<V, A, R>>(function: F) -> Self {
        function.into_kernel()
    }

    /// Returns a kernel from a function that takes its arguments as one tuple, for code that is
    /// generic over their number and types.
    #[track_caller]
    pub fn tupled<A: Args<V>, R: Ret<V>, F>(function: F) -> Self
    where
        F: for<'a> Fn(A::Of<'a>) -> Result<R> + Send + Sync + 'static,
    {
        make_kernel::<V, A, R, F>(
            function,
            A::entry::<R, F>(),
            |function, _context, args| Ok(function(A::unbox(args)?)?.into_value()),
            Location::caller(),
        )
    }

    /// Returns a kernel from a function with a typed signature, its first parameter
    /// `&CallContext<V>`.
    #[track_caller]
    pub fn typed_with_context<A, R, F: ContextKernel<V, A, R>>(function: F) -> Self {
        function.into_context_kernel()
    }
}

impl<V: Value> Dispatcher<V> {
    /// Returns a typed handle, after checking the signature against the schema.
    ///
    /// # Errors
    /// An unknown name; [`ErrorKind::Binding`] if the types don't fit the schema.
    pub fn typed<A: Args<V>, R: Ret<V>>(&self, name: &str) -> Result<TypedOperator<V, A, R>> {
        let operator = self.operator(name)?;
        check_signature::<V, A, R>(operator.schema(), "the typed handle", ErrorKind::Binding)?;
        Ok(TypedOperator { operator, signature: PhantomData })
    }
}

/// Compares a Rust signature with a schema.
fn check_signature<V: Value, A: Args<V>, R: Ret<V>>(
    schema: &Schema,
    what: &str,
    kind: ErrorKind,
) -> Result<()> {
    match A::check(&schema.arguments) {
        Ok(()) if R::accepts(&schema.returns) => Ok(()),
        found => Err(contradiction(schema, what, kind, found, R::NAME)),
    }
}

/// The error of [`check_signature`], of a signature that returns a value of that name.
#[cold]
fn contradiction(
    schema: &Schema,
    what: &str,
    kind: ErrorKind,
    found: Result<(), Misfit>,
    returned: &str,
) -> Error {
    let problem = match found {
        Ok(()) => {
            format!("it returns {returned}, where the schema promises {}", schema.returns_text())
        }
        Err(Misfit::Arity(given)) => {
            format!("it takes {given} arguments, the schema has {}", schema.arguments.len())
        }
        Err(Misfit::Type(at, given)) => format!(
            "argument '{}' is {} in the schema and {given} in the signature",
            schema.arguments[at].name, schema.arguments[at].ty
        ),
    };
    Error::new(
        kind,
        format!("{}: {what} contradicts the schema: {problem}\n  schema: {schema}", schema.name),
    )
}

/// The identity of an unboxed calling convention: argument and return types, in order.
struct Signature<V, A, R>(PhantomData<(V, A, R)>);

fn signature<V: 'static, A: 'static, R: 'static>() -> TypeId {
    TypeId::of::<Signature<V, A, R>>()
}

fn make_kernel<V: Value, A: Args<V>, R: Ret<V>, F: Send + Sync + 'static>(
    function: F,
    entry: *const (),
    boxed: impl for<'c, 'a> Fn(&F, &CallContext<'c, V>, &[V::Ref<'a>]) -> Result<V>
    + Send
    + Sync
    + 'static,
    place: &Location<'_>,
) -> Kernel<V> {
    let provenance = Provenance::rust(short_name::<F>(), place);
    let function = Arc::new(function);
    let data = Arc::as_ptr(&function).cast();
    let kernel = Kernel::boxed(move |context: &CallContext<'_, V>, args: &[V::Ref<'_>]| {
        boxed(&function, context, args)
    })
    .with_provenance(provenance)
    .with_check(|schema| check_signature::<V, A, R>(schema, "the kernel", ErrorKind::Registration));
    // SAFETY: `entry` is the function of this signature (each caller below passes its own), and
    // `data` points into the `Arc` that the boxed form keeps.
    unsafe { kernel.with_unboxed(signature::<V, A, R>(), entry, data) }
}

/// Implements everything above for one arity. A macro, since Rust isn't generic over tuple lengths.
macro_rules! arity {
    ($count:literal; $($type:ident $arg:ident $at:tt),*) => {
        impl<V: Value, $($type: Arg<V>),*> Args<V> for ($($type,)*) {
            type Of<'x> = ($($type::Arg<'x>,)*);

            #[inline(always)]
            fn unbox<'x>(args: &[V::Ref<'x>]) -> Result<Self::Of<'x>> {
                let [$($arg),*] = take_args::<V, $count>(args)?;
                Ok(($($type::unbox($arg)?,)*))
            }

            fn entry<R: Ret<V>, Func>() -> *const ()
            where
                Func: for<'x> Fn(Self::Of<'x>) -> Result<R>,
            {
                #[allow(clippy::too_many_arguments)]
                unsafe fn entry<'x, V: Value, Func, R, $($type: Arg<V>),*>(
                    data: *const (),
                    _context: &CallContext<'_, V>,
                    $($arg: $type::Arg<'x>),*
                ) -> Result<R>
                where
                    Func: for<'a> Fn(($($type::Arg<'a>,)*)) -> Result<R>,
                {
                    // SAFETY: `data` is the function that this entry was registered with.
                    let function = unsafe { &*data.cast::<Func>() };
                    function(($($arg,)*))
                }
                let entry: for<'c, 'd, 'x> unsafe fn(
                    *const (), &'c CallContext<'d, V>, $($type::Arg<'x>),*
                ) -> Result<R> = entry::<V, Func, R, $($type),*>;
                entry as *const ()
            }

            fn check(arguments: &[Argument]) -> Result<(), Misfit> {
                if arguments.len() != $count {
                    return Err(Misfit::Arity($count));
                }
                $(if !$type::accepts(&arguments[$at].ty) {
                    return Err(Misfit::Type($at, $type::NAME));
                })*
                Ok(())
            }
        }

        #[allow(clippy::too_many_arguments, reason = "as many as the operator has")]
        impl<V: Value, $($type: Arg<V>,)* R: Ret<V>> TypedOperator<V, ($($type,)*), R> {
            /// Calls the operator.
            ///
            /// # Errors
            /// Device and missing-kernel errors, and the kernel's errors.
            #[inline]
            pub fn call<'x>(&self, $($arg: $type::Arg<'x>),*) -> Result<R> {
                let tag = Tag::NONE$(.merge($type::tag(&$arg)))*;
                if tag.is_mixed() {
                    return self.call_mixed(tag.keys(), $($arg),*);
                }
                self.operator.call_with(tag.keys(), |context, kernel| {
                    Self::invoke(context, kernel, $($arg),*)
                })
            }

            /// As `call`, with arguments on different devices.
            #[cold]
            #[inline(never)]
            fn call_mixed<'x>(
                &self,
                keys: DispatchKeySet,
                $($arg: $type::Arg<'x>),*
            ) -> Result<R> {
                self.operator.check_devices(&[$($type::boxed(&$arg)),*])?;
                self.operator.call_with(keys, |context, kernel| {
                    Self::invoke(context, kernel, $($arg),*)
                })
            }

            /// Calls the operator with this key set, without adding or removing local keys.
            ///
            /// # Errors
            /// As for `call`.
            #[inline]
            pub fn redispatch<'x>(
                &self,
                keyset: DispatchKeySet,
                $($arg: $type::Arg<'x>),*
            ) -> Result<R> {
                self.operator.redispatch_with(keyset, |context, kernel| {
                    Self::invoke(context, kernel, $($arg),*)
                })
            }

            #[inline(always)]
            fn invoke<'x>(
                context: &CallContext<'_, V>,
                kernel: &Kernel<V>,
                $($arg: $type::Arg<'x>),*
            ) -> Result<R> {
                if let Some((entry, data)) = kernel.unboxed(signature::<V, ($($type,)*), R>()) {
                    // SAFETY: the signatures are the same, and kernels of this signature are
                    // made in `make_kernel`, with an entry of exactly this type.
                    let entry = unsafe {
                        std::mem::transmute::<
                            *const (),
                            for<'y> unsafe fn(
                                *const (),
                                &CallContext<'_, V>,
                                $(<$type as Arg<V>>::Arg<'y>),*
                            ) -> Result<R>,
                        >(entry)
                    };
                    // SAFETY: `data` is the function that `entry` was made for.
                    return unsafe { entry(data, context, $($arg),*) };
                }
                Self::invoke_boxed(context, kernel, $($arg),*)
            }

            #[inline(never)]
            fn invoke_boxed<'x>(
                context: &CallContext<'_, V>,
                kernel: &Kernel<V>,
                $($arg: $type::Arg<'x>),*
            ) -> Result<R> {
                let value = kernel.call(context, &[$($type::boxed(&$arg)),*])?;
                context.operator().check_return(kernel, &value)?;
                R::from_value(value)
            }
        }

        impl<V: Value, $($type: Arg<V>,)* R: Ret<V>, Func> TypedKernel<V, ($($type,)*), R> for Func
        where
            Func: Fn($($type),*) -> Result<R>
                + for<'a> Fn($($type::Arg<'a>),*) -> Result<R>
                + Send
                + Sync
                + 'static,
        {
            #[track_caller]
            fn into_kernel(self) -> Kernel<V> {
                // Selects one of the two signatures of `Func`.
                #[allow(clippy::too_many_arguments)]
                #[inline(always)]
                fn apply<Out, $($type),*>(f: impl Fn($($type),*) -> Out, $($arg: $type),*) -> Out {
                    f($($arg),*)
                }
                #[allow(clippy::too_many_arguments)]
                unsafe fn entry<'x, V: Value, Func, R, $($type: Arg<V>),*>(
                    data: *const (),
                    _context: &CallContext<'_, V>,
                    $($arg: $type::Arg<'x>),*
                ) -> Result<R>
                where
                    Func: for<'a> Fn($($type::Arg<'a>),*) -> Result<R>,
                {
                    // SAFETY: `data` is the function that this entry was registered with.
                    let function = unsafe { &*data.cast::<Func>() };
                    apply(function, $($arg),*)
                }
                let entry: for<'c, 'd, 'x> unsafe fn(
                    *const (), &'c CallContext<'d, V>, $($type::Arg<'x>),*
                ) -> Result<R> = entry::<V, Func, R, $($type),*>;
                make_kernel::<V, ($($type,)*), R, Func>(
                    self,
                    entry as *const (),
                    |function, _context, args| {
                        let [$($arg),*] = take_args::<V, $count>(args)?;
                        Ok(apply(function, $($type::unbox($arg)?),*)?.into_value())
                    },
                    Location::caller(),
                )
            }
        }

        impl<V: Value, $($type: Arg<V>,)* R: Ret<V>, Func> ContextKernel<V, ($($type,)*), R> for Func
        where
            Func: for<'c, 'd> Fn(&'c CallContext<'d, V>, $($type),*) -> Result<R>
                + for<'c, 'd, 'a> Fn(&'c CallContext<'d, V>, $($type::Arg<'a>),*) -> Result<R>
                + Send
                + Sync
                + 'static,
        {
            #[track_caller]
            fn into_context_kernel(self) -> Kernel<V> {
                #[allow(clippy::too_many_arguments)]
                #[inline(always)]
                fn apply<Context, Out, $($type),*>(
                    f: impl Fn(Context, $($type),*) -> Out,
                    context: Context,
                    $($arg: $type),*
                ) -> Out {
                    f(context, $($arg),*)
                }
                #[allow(clippy::too_many_arguments)]
                unsafe fn entry<'x, V: Value, Func, R, $($type: Arg<V>),*>(
                    data: *const (),
                    context: &CallContext<'_, V>,
                    $($arg: $type::Arg<'x>),*
                ) -> Result<R>
                where
                    Func:
                        for<'c, 'd, 'a> Fn(&'c CallContext<'d, V>, $($type::Arg<'a>),*) -> Result<R>,
                {
                    // SAFETY: `data` is the function that this entry was registered with.
                    let function = unsafe { &*data.cast::<Func>() };
                    apply(function, context, $($arg),*)
                }
                let entry: for<'c, 'd, 'x> unsafe fn(
                    *const (), &'c CallContext<'d, V>, $($type::Arg<'x>),*
                ) -> Result<R> = entry::<V, Func, R, $($type),*>;
                make_kernel::<V, ($($type,)*), R, Func>(
                    self,
                    entry as *const (),
                    |function, context, args| {
                        let [$($arg),*] = take_args::<V, $count>(args)?;
                        Ok(apply(function, context, $($type::unbox($arg)?),*)?.into_value())
                    },
                    Location::caller(),
                )
            }
        }
    };
}

/// Returns a boxed call's arguments as an array of the signature's arity.
fn take_args<'s, 'a, V: Value, const N: usize>(args: &'s [V::Ref<'a>]) -> Result<[V::Ref<'a>; N]> {
    <[V::Ref<'a>; N]>::try_from(args).map_err(|_| {
        Error::new(
            ErrorKind::Binding,
            format!("a kernel of {N} arguments was called with {}", args.len()),
        )
    })
}

arity!(0;);
arity!(1; A a 0);
arity!(2; A a 0, B b 1);
arity!(3; A a 0, B b 1, C c 2);
arity!(4; A a 0, B b 1, C c 2, D d 3);
arity!(5; A a 0, B b 1, C c 2, D d 3, E e 4);
arity!(6; A a 0, B b 1, C c 2, D d 3, E e 4, F f 5);
arity!(7; A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6);
arity!(8; A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7);
