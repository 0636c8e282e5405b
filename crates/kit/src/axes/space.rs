//! Spaces: products of axes, their points, and a value per point.

use std::fmt;
use std::marker::PhantomData;

use super::axis::AxisValue;
use super::axis::{Axis, is_same};
use super::coords::{Coords, Has};
use super::type_list::{Cons, Nil, Subsets, Subspace, ValueList};

/// The axes of a space, a tuple of up to 8; its values are the space's points.
///
/// Points are numbered in row-major order: the last axis varies fastest.
pub trait Axes: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The axes as a list.
    type List: AxisList;
    /// The names of the axes.
    const NAMES: &'static [&'static str];

    /// The point with this number, which must be below [`AxisList::COUNT`].
    fn point(index: usize) -> Self;
    /// The number of this point.
    fn index(self) -> usize;
    /// The names of this point's values in messages.
    fn labels(self) -> Vec<&'static str>;
}

/// A list of axes.
pub trait AxisList: 'static {
    /// The number of points of the axes' product.
    const COUNT: usize;

    /// Calls `f` with the number of each point of the sub-space; the numbers start at `base`.
    fn for_each_point<S: Subsets>(base: usize, f: &mut dyn FnMut(usize));

    /// The number of axes that the sub-space fixes to one value, and the number of axes that it
    /// restricts to several values but not all.
    fn fixed_axes<S: Subsets>() -> (usize, usize);
}

impl AxisList for Nil {
    const COUNT: usize = 1;
    fn for_each_point<S: Subsets>(base: usize, f: &mut dyn FnMut(usize)) {
        f(base);
    }
    fn fixed_axes<S: Subsets>() -> (usize, usize) {
        (0, 0)
    }
}

impl<A: Axis, R: AxisList> AxisList for Cons<A, R> {
    const COUNT: usize = A::ALL.len() * R::COUNT;
    fn for_each_point<S: Subsets>(base: usize, f: &mut dyn FnMut(usize)) {
        S::For::<A>::for_each_index(&mut |index| {
            R::for_each_point::<S>(base + index * R::COUNT, f);
        });
    }
    fn fixed_axes<S: Subsets>() -> (usize, usize) {
        let (pinned, narrowed) = R::fixed_axes::<S>();
        match <S::For<A> as ValueList>::LEN {
            all if all == A::ALL.len() => (pinned, narrowed),
            1 => (pinned + 1, narrowed),
            _ => (pinned, narrowed + 1),
        }
    }
}

/// The position of axis `A` in a list of axes.
pub trait AxisPosition<A: Axis> {
    /// The position; `usize::MAX` if the list lacks the axis.
    const POSITION: usize;
    /// The difference between the numbers of points that are neighbours on this axis; 0 if the list
    /// lacks it.
    const STRIDE: usize;
}

impl<A: Axis> AxisPosition<A> for Nil {
    const POSITION: usize = usize::MAX;
    const STRIDE: usize = 0;
}

impl<A: Axis, B: Axis, R: AxisList + AxisPosition<A>> AxisPosition<A> for Cons<B, R> {
    const POSITION: usize = match (is_same::<A, B>(), R::POSITION) {
        (true, _) => 0,
        (false, usize::MAX) => usize::MAX,
        (false, further) => further + 1,
    };
    const STRIDE: usize = if is_same::<A, B>() { R::COUNT } else { R::STRIDE };
}

/// Coordinates of a point of the space `S`: a tuple of a value for each axis, in any order.
///
/// Values are enum values or zero-sized values. An axis that is missing, given twice or not one of the
/// space's is an error at compile time.
pub trait Query<S: Axes>: Copy {
    /// Fails to compile unless each axis is given exactly once.
    const COMPLETE: ();

    /// The point's number.
    fn index(self) -> usize;
}

/// Coordinates known at compile time that have a value for each axis of a list.
pub trait Within<L>: Coords {
    /// The number of the coordinates' point.
    const INDEX: usize;
}

impl<C: Coords> Within<Nil> for C {
    const INDEX: usize = 0;
}

impl<A: Axis, R: AxisList, C: Has<A> + Within<R>> Within<Cons<A, R>> for C {
    const INDEX: usize = <C as Has<A>>::Value::INDEX * R::COUNT + <C as Within<R>>::INDEX;
}

/// The space of all points of some axes.
pub struct Space<S>(PhantomData<fn() -> S>);

impl<S: Axes> Space<S> {
    /// The number of points.
    pub const COUNT: usize = <S::List as AxisList>::COUNT;

    /// The number of a point; its coordinates come in any order.
    #[inline]
    pub fn index(point: impl Query<S>) -> usize {
        point.index()
    }

    /// The point with this number, or `None` if the number is too large.
    #[inline]
    pub fn point(index: usize) -> Option<S> {
        (index < Self::COUNT).then(|| S::point(index))
    }

    /// Every point, in the order of their numbers.
    pub fn points() -> impl ExactSizeIterator<Item = S> + DoubleEndedIterator + Clone {
        (0..Self::COUNT).map(S::point)
    }

    /// The point as text: `device=cpu, dtype=float32`.
    pub fn describe(point: S) -> String {
        let parts: Vec<_> = S::NAMES
            .iter()
            .zip(point.labels())
            .map(|(name, label)| format!("{name}={label}"))
            .collect();
        parts.join(", ")
    }
}

/// A set of points: the union of sub-spaces.
#[derive(Clone, PartialEq, Eq)]
pub struct Coverage<S> {
    covered: Vec<bool>,
    count: usize,
    space: PhantomData<fn() -> S>,
}

impl<S: Axes> Default for Coverage<S> {
    fn default() -> Self {
        Coverage { covered: vec![false; Space::<S>::COUNT], count: 0, space: PhantomData }
    }
}

impl<S: Axes> Coverage<S> {
    /// No points.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the points of a sub-space.
    #[must_use]
    pub fn and<P: Subspace>(mut self, subspace: P) -> Self {
        let _ = subspace;
        <S::List as AxisList>::for_each_point::<P::List>(0, &mut |index| self.insert(index));
        self
    }

    pub(super) fn insert(&mut self, index: usize) {
        self.count += usize::from(!self.covered[index]);
        self.covered[index] = true;
    }

    /// The number of points.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the point is in the set.
    pub fn contains(&self, point: impl Query<S>) -> bool {
        self.covered[point.index()]
    }

    /// The points, in the order of their numbers.
    pub fn points(&self) -> impl Iterator<Item = S> + '_ {
        self.indices().map(S::point)
    }

    /// The points' numbers, in order.
    pub fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        self.covered.iter().enumerate().filter_map(|(index, &covered)| covered.then_some(index))
    }
}

impl<S: Axes> fmt::Debug for Coverage<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.points()).finish()
    }
}

/// A value for each point of a space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AxesMap<S, T> {
    values: Box<[T]>,
    space: PhantomData<fn() -> S>,
}

impl<S: Axes, T> AxesMap<S, T> {
    /// Makes a map whose value at each point is `f` of the point.
    pub fn from_fn(f: impl FnMut(S) -> T) -> Self {
        AxesMap { values: Space::<S>::points().map(f).collect(), space: PhantomData }
    }

    /// The value at a point.
    #[inline]
    pub fn get(&self, point: impl Query<S>) -> &T {
        &self.values[point.index()]
    }

    /// The value at a point, mutably.
    #[inline]
    pub fn get_mut(&mut self, point: impl Query<S>) -> &mut T {
        &mut self.values[point.index()]
    }

    /// Sets the value at a point and returns the previous one.
    pub fn set(&mut self, point: impl Query<S>, value: T) -> T {
        std::mem::replace(self.get_mut(point), value)
    }

    /// The values with their points.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (S, &T)> {
        self.values.iter().enumerate().map(|(index, value)| (S::point(index), value))
    }
}

impl<S: Axes, T: Default> Default for AxesMap<S, T> {
    fn default() -> Self {
        Self::from_fn(|_| T::default())
    }
}
