//! Bodies: what makes the instance of a table at one point, and instantiating one over a sub-space.

use std::any::type_name;

use super::axis::{Axis, AxisValue};
use super::coords::{At, Coords};
use super::list::{Cons, Nil, Subsets};
use super::space::AxisList;

/// A kernel that is written once and instantiated at each point that it covers.
///
/// `C` are the point's coordinates and `F` is what the table holds, mostly a function pointer. A
/// struct implements this for the coordinates that it can do, with its associated functions as the
/// instances; a free function becomes a body by [`body!`](crate::body); [`plain`] makes one of an
/// instance that doesn't depend on the coordinates.
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

    /// What messages call the body: the name of its type.
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

/// Takes a point's number, its instance, and what gives the name of the body that made it.
pub type Sink<'a, F> = dyn FnMut(usize, F, &dyn Fn() -> String) + 'a;

/// Makes the instances of a body at each point of a sub-space: the loop that the compiler runs.
///
/// `Self` is the list of axes that are still to be fixed, `C` are the coordinates fixed so far.
pub trait Instantiate<S, B, F, C> {
    /// Calls `sink` with each point's number and instance; `base` is where the numbers start.
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

/// The step of [`Instantiate`]: one axis, value by value. `Self` is the list of values, `R` the list
/// of the axes after it.
pub trait InstantiateEach<R, S, B, F, C> {
    /// Calls `sink` for each value.
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

/// A body that gives the same instance at each point: a function that isn't generic.
#[derive(Clone, Copy, Debug)]
pub struct Plain<F> {
    name: &'static str,
    instance: F,
}

/// The body that gives this instance at each point; messages call it `name`.
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

/// Makes a body of a free function that is generic over the coordinates, which it takes first.
///
/// `body!(bytes(count) -> fn(usize) -> usize where HasDtype)` gives, at each point, the function that
/// calls `bytes(coords, count)`. The bounds after `where` are those of the function.
///
/// A macro, since a generic function has no value before its type parameters are known.
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
