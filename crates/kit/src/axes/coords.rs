//! Coordinates: zero-sized values that a kernel knows at compile time and passes on.

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;

use keyfold_core::Element;

use super::axis::{Axis, AxisValue, Same};
use super::standard::{Dtype, Of};
use super::type_bool::TypeBool;

/// Coordinates: a value for each of some axes, all known at compile time and zero-sized.
///
/// A body receives its coordinates, reads them by [`get`](Coords::get) and passes them on. The bound
/// [`Has`] names an axis that a function needs; the order of the axes, and further axes, don't matter:
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
    /// The type of the value of axis `A`; [`Missing`] if there is none, which [`Has`] excludes.
    type Get<A: Axis>;
    /// These coordinates without the value of axis `A`.
    type Without<A: Axis>: Coords;

    /// Calls `f` with each axis, its name and the value's name, the latest first.
    fn visit(f: &mut dyn FnMut(TypeId, &'static str, &'static str));

    /// Returns the value of axis `A` as a zero-sized value of the value's type.
    #[inline(always)]
    fn get<A: Axis>(self) -> <Self as Has<A>>::Value
    where
        Self: Has<A>,
    {
        Default::default()
    }

    /// Returns the value of axis `A` as the axis's enum. The compiler knows it, so a `match` on it costs
    /// nothing.
    #[inline(always)]
    fn value<A: Axis>(self) -> A
    where
        Self: Has<A>,
    {
        <<Self as Has<A>>::Value as AxisValue>::VALUE
    }

    /// Adds a value, which replaces an earlier value of the same axis.
    ///
    /// A kernel can thereby pass on an axis that its table doesn't have, such as the block size on a
    /// GPU.
    #[inline(always)]
    fn with<V: AxisValue>(self, value: V) -> At<V, Self> {
        let _ = value;
        At::default()
    }

    /// Removes the value of axis `A`.
    #[inline(always)]
    fn without<A: Axis>(self) -> Self::Without<A> {
        Default::default()
    }

    /// The axes and values as `(name, label)`, in the order in which they were added.
    fn entries(self) -> Vec<(&'static str, &'static str)> {
        let mut seen = Vec::new();
        let mut entries = Vec::new();
        Self::visit(&mut |axis, name, label| {
            // A later value of the same axis replaces this one.
            if !seen.contains(&axis) {
                seen.push(axis);
                entries.push((name, label));
            }
        });
        entries.reverse();
        entries
    }
}

/// Coordinates that have a value of axis `A`; implemented for all of them.
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

/// Empty coordinates, to which [`Coords::with`] adds values.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin;

/// The value type of an axis that the coordinates don't have.
#[derive(Debug)]
pub struct Missing;

impl Coords for Origin {
    type Get<A: Axis> = Missing;
    type Without<A: Axis> = Origin;
    fn visit(_: &mut dyn FnMut(TypeId, &'static str, &'static str)) {}
}

/// The coordinates `C` with the value `V`, which replaces an earlier value of the same axis.
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
    type Get<A: Axis> = <Same<A, V::Axis> as TypeBool>::PickValue<V, C, A>;
    type Without<A: Axis> =
        <Same<A, V::Axis> as TypeBool>::PickCoords<C::Without<A>, At<V, C::Without<A>>>;
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
