//! Coordinates: values of size 0 that a kernel has at compile time and hands on.

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;

use keyfold_core::Element;

use super::axis::{Axis, AxisValue, Same};
use super::standard::{Dtype, Of};
use super::truth::Truth;

/// Coordinates: a value for each of some axes, all known at compile time. The size is 0.
///
/// What a body gets, reads with [`get`](Coords::get), and hands on. In bounds, [`Has`] says which
/// axes it needs, in any order and whatever else is there:
///
/// ```
/// use keyfold_kit::axes::{
///     Contiguity, Contiguous, Coords, Cpu, Device, Has, HasDtype, Origin, Of, Strided,
/// };
///
/// fn bytes<C: HasDtype + Has<Contiguity>>(coords: C, count: usize) -> usize {
///     match coords.value::<Contiguity>() {
///         Contiguity::Contiguous => count * size_of::<C::Element>(),
///         Contiguity::Strided => 0,
///     }
/// }
///
/// let coords = Origin.with(Contiguous).with(Of::<f32>::new()).with(Cpu);
/// assert_eq!(size_of_val(&coords), 0);
/// assert_eq!(bytes(coords, 10), 40);
/// assert_eq!(bytes(coords.with(Strided), 10), 0);
/// assert_eq!(bytes(coords.without::<Device>(), 10), 40);
/// ```
pub trait Coords: Copy + Default + Send + Sync + 'static {
    /// The type of the value of axis `A`; [`Missing`] if there is none. [`Has`] rules that out.
    type Get<A: Axis>;
    /// These coordinates without the value of axis `A`.
    type Without<A: Axis>: Coords;

    /// Calls `f` with each axis and value that counts, the latest first.
    fn visit(f: &mut dyn FnMut(TypeId, &'static str, &'static str));

    /// The value of axis `A`, as a value of size 0 whose type says which.
    #[inline(always)]
    fn get<A: Axis>(self) -> <Self as Has<A>>::Value
    where
        Self: Has<A>,
    {
        Default::default()
    }

    /// The value of axis `A`, which the compiler knows: a `match` on it costs nothing.
    #[inline(always)]
    fn value<A: Axis>(self) -> A
    where
        Self: Has<A>,
    {
        <<Self as Has<A>>::Value as AxisValue>::VALUE
    }

    /// These coordinates with that value, which replaces the one of its axis or adds it.
    ///
    /// So an author adds what is no axis of the table, such as the block size on a GPU, and hands
    /// it on.
    #[inline(always)]
    fn with<V: AxisValue>(self, value: V) -> At<V, Self> {
        let _ = value;
        At::default()
    }

    /// These coordinates without the value of axis `A`.
    #[inline(always)]
    fn without<A: Axis>(self) -> Self::Without<A> {
        Default::default()
    }

    /// Axes and values as `(name, label)`, in the order in which they were added.
    fn entries(self) -> Vec<(&'static str, &'static str)> {
        let mut seen = Vec::new();
        let mut entries = Vec::new();
        Self::visit(&mut |axis, name, label| {
            // An earlier value of the same axis was replaced.
            if !seen.contains(&axis) {
                seen.push(axis);
                entries.push((name, label));
            }
        });
        entries.reverse();
        entries
    }
}

/// Coordinates that have a value of axis `A`. Implemented for all that do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no value of the axis `{A}`",
    note = "add the bound `Has<{A}>` to the coordinates, or a value with `coords.with(..)`"
)]
pub trait Has<A: Axis>: Coords<Get<A> = <Self as Has<A>>::Value> {
    /// The type of the value.
    type Value: AxisValue<Axis = A>;
}

impl<A: Axis, C: Coords> Has<A> for C
where
    C::Get<A>: AxisValue<Axis = A>,
{
    type Value = C::Get<A>;
}

/// Coordinates that have a dtype: [`Element`](HasDtype::Element) is the Rust type of an element.
pub trait HasDtype: Has<Dtype, Value = Of<<Self as HasDtype>::Element>> {
    /// The Rust type of an element: `f32`.
    type Element: Element;
}

impl<C, T: Element> HasDtype for C
where
    C: Has<Dtype, Value = Of<T>>,
{
    type Element = T;
}

/// No coordinates: where [`Coords::with`] starts.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin;

/// What coordinates have of an axis that they have no value of.
#[derive(Debug)]
pub struct Missing;

impl Coords for Origin {
    type Get<A: Axis> = Missing;
    type Without<A: Axis> = Origin;
    fn visit(_: &mut dyn FnMut(TypeId, &'static str, &'static str)) {}
}

/// The coordinates `C` with the value `V`, which replaces an earlier one of the same axis.
pub struct At<V, C>(PhantomData<fn() -> (V, C)>);

impl<V, C> Clone for At<V, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V, C> Copy for At<V, C> {}

impl<V, C> Default for At<V, C> {
    fn default() -> Self {
        At(PhantomData)
    }
}

impl<V: AxisValue, C: Coords> Coords for At<V, C> {
    type Get<A: Axis> = <Same<A, V::Axis> as Truth>::PickValue<V, C, A>;
    type Without<A: Axis> =
        <Same<A, V::Axis> as Truth>::PickCoords<C::Without<A>, At<V, C::Without<A>>>;
    fn visit(f: &mut dyn FnMut(TypeId, &'static str, &'static str)) {
        f(TypeId::of::<V::Axis>(), V::Axis::NAME, V::VALUE.label());
        C::visit(f);
    }
}

fn write(coords: impl Coords, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let entries = coords.entries();
    f.debug_map().entries(entries.iter().map(|&(name, label)| (name, label))).finish()
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(*self, f)
    }
}

impl<V: AxisValue, C: Coords> fmt::Debug for At<V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(*self, f)
    }
}
