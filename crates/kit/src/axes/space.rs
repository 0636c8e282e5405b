//! Spaces: products of axes, their points, and a value per point.

use std::fmt;
use std::marker::PhantomData;

use super::axis::AxisValue;
use super::axis::{Axis, is_same};
use super::coords::{Coords, Has};
use super::list::{Cons, Nil, Subsets, Subspace, ValueList};

/// The axes of a space, a tuple of up to 8; its values are the space's points.
///
/// Points are numbered row by row: the last axis runs fastest.
pub trait Axes: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The axes as a list.
    type List: AxisList;
    /// Their names.
    const NAMES: &'static [&'static str];

    /// The point with that number, which must be below [`AxisList::COUNT`].
    fn point(index: usize) -> Self;
    /// The number of this point.
    fn index(self) -> usize;
    /// What messages call the values of this point.
    fn labels(self) -> Vec<&'static str>;
}

/// A list of axes.
pub trait AxisList: 'static {
    /// How many points their product has.
    const COUNT: usize;

    /// Calls `f` with the number of each point of the sub-space; `base` is where they start.
    fn for_each_point<S: Subsets>(base: usize, f: &mut dyn FnMut(usize));

    /// How many axes the sub-space fixes to one value, and to how many it leaves a choice, though
    /// not the whole one.
    fn pins<S: Subsets>() -> (usize, usize);
}

impl AxisList for Nil {
    const COUNT: usize = 1;
    fn for_each_point<S: Subsets>(base: usize, f: &mut dyn FnMut(usize)) {
        f(base);
    }
    fn pins<S: Subsets>() -> (usize, usize) {
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
    fn pins<S: Subsets>() -> (usize, usize) {
        let (pinned, narrowed) = R::pins::<S>();
        match <S::For<A> as ValueList>::LEN {
            all if all == A::ALL.len() => (pinned, narrowed),
            1 => (pinned + 1, narrowed),
            _ => (pinned, narrowed + 1),
        }
    }
}

/// Where axis `A` is in a list of axes.
pub trait Place<A: Axis> {
    /// Its position; `usize::MAX` if it isn't there.
    const POSITION: usize;
    /// By how much a step on this axis changes a point's number; 0 if it isn't there.
    const STRIDE: usize;
}

impl<A: Axis> Place<A> for Nil {
    const POSITION: usize = usize::MAX;
    const STRIDE: usize = 0;
}

impl<A: Axis, B: Axis, R: AxisList + Place<A>> Place<A> for Cons<B, R> {
    const POSITION: usize = match (is_same::<A, B>(), R::POSITION) {
        (true, _) => 0,
        (false, usize::MAX) => usize::MAX,
        (false, further) => further + 1,
    };
    const STRIDE: usize = if is_same::<A, B>() { R::COUNT } else { R::STRIDE };
}

/// Coordinates of a point of the space `S`: a tuple of a value for each axis, in any order.
///
/// Values are enum values or values of size 0. A missing axis, one that is given twice and one that
/// the space hasn't are errors at compile time.
pub trait Query<S: Axes>: Copy {
    /// Fails to compile unless each axis is there exactly once.
    const COMPLETE: ();

    /// The point's number.
    fn index(self) -> usize;
}

/// Coordinates known at compile time that have a value for each axis of a list.
pub trait Within<L>: Coords {
    /// The number of their point.
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
    /// How many points there are.
    pub const COUNT: usize = <S::List as AxisList>::COUNT;

    /// The number of a point, its coordinates in any order.
    #[inline]
    pub fn index(point: impl Query<S>) -> usize {
        point.index()
    }

    /// The point with that number, if there is one.
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

    /// These points and those of the sub-space.
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

    /// How many points there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the point is one of them.
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
    /// The map that `f` makes, point by point.
    pub fn from_fn(f: impl FnMut(S) -> T) -> Self {
        AxesMap { values: Space::<S>::points().map(f).collect(), space: PhantomData }
    }

    /// The value at a point.
    #[inline]
    pub fn get(&self, point: impl Query<S>) -> &T {
        &self.values[point.index()]
    }

    /// The value at a point, for a change.
    #[inline]
    pub fn get_mut(&mut self, point: impl Query<S>) -> &mut T {
        &mut self.values[point.index()]
    }

    /// Puts a value at a point and gives the one that was there.
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
