//! Lists of types: the values of an axis, and sub-spaces.

use std::marker::PhantomData;

use super::axis::{Axis, AxisValue, Same};
use super::type_bool::TypeBool;

/// A first type and the list of the others.
pub struct Cons<H, R>(PhantomData<fn() -> (H, R)>);

/// The empty list.
pub struct Nil;

/// A list of types of values of an axis.
pub trait ValueList: 'static {
    /// The number of values.
    const LEN: usize;
    /// Calls `f` with the index of each value.
    fn for_each_index(f: &mut dyn FnMut(usize));
}

impl ValueList for Nil {
    const LEN: usize = 0;
    fn for_each_index(_: &mut dyn FnMut(usize)) {}
}

impl<V: AxisValue, R: ValueList> ValueList for Cons<V, R> {
    const LEN: usize = 1 + R::LEN;
    fn for_each_index(f: &mut dyn FnMut(usize)) {
        f(V::INDEX);
        R::for_each_index(f);
    }
}

/// The list of these types. This is a macro because a list of types has no other short form.
#[macro_export]
macro_rules! values {
    () => { $crate::axes::Nil };
    ($value:ty $(, $rest:ty)* $(,)?) => {
        $crate::axes::Cons<$value, $crate::values!($($rest),*)>
    };
}

/// Some values of one axis: a single one (`Cpu`), [`one_of`] several, or a named set (`FLOATS`).
pub trait Subset: Copy {
    /// The axis.
    type Axis: Axis;
    /// Its values.
    type Values: ValueList;
}

impl<V: AxisValue> Subset for V {
    type Axis = V::Axis;
    type Values = Cons<V, Nil>;
}

/// Several values of one axis, as a tuple of them.
pub struct OneOf<T>(PhantomData<fn() -> T>);

impl<T> Clone for OneOf<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for OneOf<T> {}

impl<T> OneOf<T> {
    /// The set of the tuple's types; [`one_of`] takes their values.
    pub const fn new() -> Self {
        OneOf(PhantomData)
    }
}

impl<T> Default for OneOf<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The set of these values: `one_of((F32, F64))`.
pub const fn one_of<T: Copy>(values: T) -> OneOf<T>
where
    OneOf<T>: Subset,
{
    let _ = values;
    OneOf::new()
}

/// Every value of an axis: the same as not naming the axis.
pub struct Every<A>(PhantomData<fn() -> A>);

impl<A> Clone for Every<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Every<A> {}

impl<A> Every<A> {
    /// All values of the axis.
    pub const fn new() -> Self {
        Every(PhantomData)
    }
}

impl<A> Default for Every<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Axis> Subset for Every<A> {
    type Axis = A;
    type Values = A::Values;
}

/// A sub-space as a list of subsets of different axes; an axis without a subset has all its values.
pub trait Subsets: 'static {
    /// The values on axis `A`: those of its subset, or all if it has none.
    type For<A: Axis>: ValueList;
    /// Calls `f` with the name of each axis that has a subset.
    fn for_each_name(f: &mut dyn FnMut(&'static str));
}

impl Subsets for Nil {
    type For<A: Axis> = A::Values;
    fn for_each_name(_: &mut dyn FnMut(&'static str)) {}
}

impl<S: Subset + 'static, R: Subsets> Subsets for Cons<S, R> {
    type For<A: Axis> = <Same<A, S::Axis> as TypeBool>::PickValues<S::Values, R::For<A>>;
    fn for_each_name(f: &mut dyn FnMut(&'static str)) {
        f(S::Axis::NAME);
        R::for_each_name(f);
    }
}

/// A sub-space: a tuple of up to 8 subsets in any order, such as `(Cpu, FLOATS)`; `()` is the whole
/// space.
pub trait Subspace: Copy {
    /// The subsets as a list.
    type List: Subsets;
}

impl Subspace for () {
    type List = Nil;
}
