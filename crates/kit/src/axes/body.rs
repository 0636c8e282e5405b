//! Bodies: the generic kernels of a table, and their instantiation over a sub-space.

use std::any::type_name;

use super::axis::{Axis, AxisValue};
use super::coords::{At, Coords};
use super::space::AxisList;
use super::type_list::{Cons, Nil, Subsets};

/// A kernel that is written once and instantiated at each point that it covers.
///
/// `C` are the point's coordinates, and `F` is the type of the table's instances, usually a function
/// pointer. A struct implements this trait for the coordinates that it supports, with its associated
/// functions as the instances. [`body!`](crate::body) makes a body of a generic free function, and
/// [`plain`] makes one of a function that doesn't depend on the coordinates.
///
/// ```
/// use keyfold_kit::axes::{Body, HasDtype};
///
/// struct Bytes;
///
/// impl Bytes {
///     fn bytes<C: HasDtype>(count: usize) -> usize {
///         count * size_of::<C::Element>()
///     }
/// }
///
/// impl<C: HasDtype> Body<C, fn(usize) -> usize> for Bytes {
///     fn instance(&self, _: C) -> fn(usize) -> usize {
///         Self::bytes::<C>
///     }
/// }
/// ```
pub trait Body<C: Coords, F>: 'static {
    /// The instance at the point with these coordinates.
    fn instance(&self, coords: C) -> F;

    /// The body's name in messages: the name of its type.
    fn name(&self) -> String {
        short_name::<Self>()
    }
}

/// A type's name without its path and parameters.
fn short_name<T: ?Sized>() -> String {
    let full = type_name::<T>();
    let bare = full.split('<').next().unwrap_or(full);
    bare.rsplit("::").next().unwrap_or(bare).to_owned()
}

/// A callback that takes a point's number, its instance, and a function that returns the body's name.
pub type Sink<'a, F> = dyn FnMut(usize, F, &dyn Fn() -> String) + 'a;

/// Instantiates a body at each point of a sub-space, by recursion at compile time.
///
/// `Self` is the list of axes whose values are still to be chosen, `C` are the coordinates chosen so
/// far.
pub trait Instantiate<S, B, F, C> {
    /// Calls `sink` with each point's number and instance; the numbers start at `base`.
    fn instantiate(body: &B, base: usize, sink: &mut Sink<'_, F>);
}

impl<S, C: Coords, F, B: Body<C, F>> Instantiate<S, B, F, C> for Nil {
    fn instantiate(body: &B, base: usize, sink: &mut Sink<'_, F>) {
        sink(base, body.instance(C::default()), &|| body.name());
    }
}

impl<A: Axis, R: AxisList, S: Subsets, B, F, C> Instantiate<S, B, F, C> for Cons<A, R>
where
    S::For<A>: InstantiateEach<R, S, B, F, C>,
{
    fn instantiate(body: &B, base: usize, sink: &mut Sink<'_, F>) {
        <S::For<A>>::instantiate_each(body, base, sink);
    }
}

/// The recursion step of [`Instantiate`]: instantiates for each value of one axis. `Self` is the list of
/// the axis's values, `R` the list of the axes after it.
pub trait InstantiateEach<R, S, B, F, C> {
    /// Calls `sink` for every point with one of the values.
    fn instantiate_each(body: &B, base: usize, sink: &mut Sink<'_, F>);
}

impl<R, S, B, F, C> InstantiateEach<R, S, B, F, C> for Nil {
    fn instantiate_each(_: &B, _: usize, _: &mut Sink<'_, F>) {}
}

impl<V, T, R, S, B, F, C> InstantiateEach<R, S, B, F, C> for Cons<V, T>
where
    V: AxisValue,
    R: AxisList + Instantiate<S, B, F, At<V, C>>,
    T: InstantiateEach<R, S, B, F, C>,
{
    fn instantiate_each(body: &B, base: usize, sink: &mut Sink<'_, F>) {
        R::instantiate(body, base + V::INDEX * R::COUNT, sink);
        T::instantiate_each(body, base, sink);
    }
}

/// A body with the same instance at each point: a function that isn't generic.
#[derive(Clone, Copy, Debug)]
pub struct Plain<F> {
    name: &'static str,
    instance: F,
}

/// Makes a body that has this instance at each point; messages call it `name`.
pub fn plain<F: Clone + 'static>(name: &'static str, instance: F) -> Plain<F> {
    Plain { name, instance }
}

impl<C: Coords, F: Clone + 'static> Body<C, F> for Plain<F> {
    fn instance(&self, _: C) -> F {
        self.instance.clone()
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}

/// Makes a body of a free function that is generic over the coordinates, its first argument.
///
/// The instances of `body!(bytes(count) -> fn(usize) -> usize where HasDtype)` are functions that call
/// `bytes(coords, count)`. The bounds after `where` are the function's.
///
/// This is a macro because a generic function has no value before its type parameters are known.
///
/// ```
/// use keyfold_kit::axes::{Contiguity, F32, F64, Contiguous, DispatchTable, Dtype, HasDtype, one_of};
///
/// fn bytes<C: HasDtype>(_: C, count: usize) -> usize {
///     count * size_of::<C::Element>()
/// }
///
/// let table = DispatchTable::<(Contiguity, Dtype), fn(usize) -> usize>::builder("bytes")
///     .cover(
///         (one_of((F32, F64)), Contiguous),
///         keyfold_kit::body!(bytes(count) -> fn(usize) -> usize where HasDtype),
///     )
///     .build()?;
/// assert_eq!(table.select((Dtype::F32, Contiguity::Contiguous))?(10), 40);
/// # Ok::<(), keyfold_core::Error>(())
/// ```
#[macro_export]
macro_rules! body {
    ($function:ident ( $($argument:ident),* $(,)? ) -> $instance:ty where $($bounds:tt)+) => {{
        #[derive(Clone, Copy)]
        struct FreeFunction;

        impl<C: $crate::axes::Coords + $($bounds)+> $crate::axes::Body<C, $instance>
            for FreeFunction
        {
            fn instance(&self, _: C) -> $instance {
                |$($argument),*| $function(<C as ::core::default::Default>::default(), $($argument),*)
            }

            fn name(&self) -> ::std::string::String {
                ::std::string::String::from(stringify!($function))
            }
        }

        FreeFunction
    }};
    ($function:ident ( $($argument:ident),* $(,)? ) -> $instance:ty) => {
        $crate::body!($function($($argument),*) -> $instance where $crate::axes::Coords)
    };
}
