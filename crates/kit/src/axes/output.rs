//! The dtype of a kernel's output, as an axis of its own.

use keyfold_core::Element;

use super::axis::{Axis, AxisValue, Coordinate};
use super::body::Instantiate;
use super::coords::{Has, Origin};
use super::space::Axes;
use super::standard::{Dtype, Of};
use super::table::TableBuilder;
use super::type_bool::OwnId;
use super::type_list::{Cons, Nil, OneOf, Subset, Subspace, ValueList};

/// The axis of the output's dtype: a table over `(Dtype, Output<Dtype>)` is selected from by two dtypes.
/// Its values and subsets are those of [`Dtype`] in this wrapper: `Output(F32)`, `Output(FLOATS)`.
///
/// ```
/// use keyfold_kit::axes::{DispatchTable, Dtype, FLOATS, HasDtype, HasOutput, INTS, Output};
///
/// fn bytes<C: HasDtype + HasOutput>(_: C, count: usize) -> (usize, usize) {
///     (count * size_of::<C::Element>(), count * size_of::<C::Output>())
/// }
///
/// type Bytes = fn(usize) -> (usize, usize);
/// let body = keyfold_kit::body!(bytes(count) -> Bytes where HasDtype + HasOutput);
/// let table = DispatchTable::<(Dtype, Output<Dtype>), Bytes>::builder("bytes")
///     .cover((INTS, Output(FLOATS)), body)
///     .cover_same(FLOATS, body)
///     .build()?;
/// assert_eq!(table.count(), 8 * 4 + 4);
/// assert_eq!(table.select((Dtype::I8, Output(Dtype::F64)))?(3), (3, 24));
/// assert!(table.try_select((Dtype::F32, Output(Dtype::F64))).is_none());
/// # Ok::<(), keyfold_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Output<T>(pub T);

impl Axis for Output<Dtype> {
    const NAME: &'static str = "output dtype";
    const ALL: &'static [Self] = &{
        let mut all = [Output(Dtype::Bool); Dtype::ALL.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = Output(Dtype::ALL[i]);
            i += 1;
        }
        all
    };
    type Id = OwnId<1, 2>;
    type Values = <<Dtype as Axis>::Values as Dtypes>::Outputs;

    #[inline(always)]
    fn index(self) -> usize {
        self.0.index()
    }

    fn label(self) -> &'static str {
        self.0.label()
    }
}

impl<T: Element> AxisValue for Output<Of<T>> {
    type Axis = Output<Dtype>;
    const VALUE: Output<Dtype> = Output(T::DTYPE);
    const INDEX: usize = <Of<T> as AxisValue>::INDEX;
}

impl<D: Coordinate<Axis = Dtype>> Coordinate for Output<D> {
    type Axis = Output<Dtype>;
    #[inline(always)]
    fn coordinate(self) -> Output<Dtype> {
        Output(self.0.coordinate())
    }
}

/// A list of dtypes.
pub trait Dtypes: ValueList {
    /// The same dtypes as values of the output's axis.
    type Outputs: ValueList;
}

impl Dtypes for Nil {
    type Outputs = Nil;
}

impl<T: Element, R: Dtypes> Dtypes for Cons<Of<T>, R> {
    type Outputs = Cons<Output<Of<T>>, R::Outputs>;
}

impl<T> Subset for Output<OneOf<T>>
where
    OneOf<T>: Subset<Axis = Dtype, Values: Dtypes>,
{
    type Axis = Output<Dtype>;
    type Values = <<OneOf<T> as Subset>::Values as Dtypes>::Outputs;
}

/// Coordinates that have an output dtype: [`Output`](HasOutput::Output) is the Rust type of its
/// elements.
pub trait HasOutput: Has<Output<Dtype>, Value = Output<Of<<Self as HasOutput>::Output>>> {
    /// The Rust type of the output's elements.
    type Output: Element;
}

impl<C, T: Element> HasOutput for C
where
    C: Has<Output<Dtype>, Value = Output<Of<T>>>,
{
    type Output = T;
}

/// A list of dtypes whose equal pairs a body can cover: [`TableBuilder::cover_same`].
pub trait CoverSame<S, F, B> {
    /// Adds those points to the builder.
    fn cover(builder: TableBuilder<S, F>, body: B) -> TableBuilder<S, F>;
}

impl<S, F, B> CoverSame<S, F, B> for Nil {
    fn cover(builder: TableBuilder<S, F>, _: B) -> TableBuilder<S, F> {
        builder
    }
}

impl<S, F, B, T, R> CoverSame<S, F, B> for Cons<Of<T>, R>
where
    S: Axes,
    F: Clone + 'static,
    B: Copy + 'static,
    T: Element,
    R: CoverSame<S, F, B>,
    S::List: Instantiate<<(Of<T>, Output<Of<T>>) as Subspace>::List, B, F, Origin>,
{
    fn cover(builder: TableBuilder<S, F>, body: B) -> TableBuilder<S, F> {
        R::cover(builder.cover((Of::<T>::new(), Output(Of::<T>::new())), body), body)
    }
}

impl<S: Axes, F: Clone + 'static> TableBuilder<S, F> {
    /// Covers the points where inputs and output have the same dtype, for each of these dtypes.
    pub fn cover_same<D: Subset<Axis = Dtype>, B>(self, dtypes: D, body: B) -> Self
    where
        D::Values: CoverSame<S, F, B>,
    {
        let _ = dtypes;
        <D::Values as CoverSame<S, F, B>>::cover(self, body)
    }
}
