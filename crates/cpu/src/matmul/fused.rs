//! Products with an epilogue: a factor, an addend and an activation, applied to each part of the result while
//! it is in the cache.

use std::sync::LazyLock;

use keyfold_backend::{Activation, Execute, Kernels, LinearFactor, LinearParams, Offer, Operation};
use keyfold_core::{Complex, DType, Result};
use keyfold_kit::axes::{Body, DispatchTable, Dtype, HALVES, HasDtype};
use keyfold_tensor::Tensor;

use super::halves::Factor;
use super::matrix::{Batched, Matrix, Operands, Sizes};
use super::parts::Place;
use super::product::{Product, Rows};
use super::{halves, multiply};
use crate::HostBackend;
use crate::bits::Bits;
use crate::convert::converted;
use crate::element::{HasNumber, Number};
use crate::epilogue::activate;
use crate::kernel::{BOOL_AND_INTEGERS, NATIVE_FLOATS, SeveralKernel, offer_several};

const MATMUL: &Operation = &Operation::new("matmul");

/// Element types with an epilogue.
trait Combine: Product {
    fn from_factor(factor: LinearFactor) -> Self;

    /// Applies an activation, which only floats have.
    fn activate(_: Activation, _: &mut [Self::Stored]) {}
}

macro_rules! combine_integers {
    // A macro, since a blanket implementation would cover the floats, too.
    ($($type:ty)*) => {$(
        impl Combine for $type {
            fn from_factor(factor: LinearFactor) -> Self {
                factor.integer as $type
            }
        }
    )*};
}

combine_integers!(u8 u16 u32 u64);

impl Combine for bool {
    fn from_factor(factor: LinearFactor) -> Self {
        factor.integer != 0
    }
}

macro_rules! combine_floats {
    // As above.
    ($($type:ident)*) => {$(
        impl Combine for $type {
            fn from_factor(factor: LinearFactor) -> Self {
                factor.re as $type
            }

            fn activate(activation: Activation, x: &mut [Self]) {
                activate(activation, x);
            }
        }

        impl Combine for Complex<$type> {
            fn from_factor(factor: LinearFactor) -> Self {
                Complex::new(factor.re as $type, factor.im as $type)
            }
        }
    )*};
}

combine_floats!(f32 f64);

/// The epilogue of a product, for results of type `T`.
struct Epilogue<'a, T: Number> {
    alpha: Option<T>,
    beta: Option<T>,
    addend: Option<Batched<'a, T::Stored>>,
    batch: &'a [usize],
    activation: Activation,
}

impl<'a, T: Combine> Epilogue<'a, T> {
    /// Makes the epilogue of results of that shape.
    ///
    /// # Errors
    /// If the host can't access the addend's memory, or it doesn't broadcast to the shape.
    fn new(params: &LinearParams, addend: Option<&'a Tensor>, shape: &'a [usize]) -> Result<Self> {
        let factor = |given: LinearFactor| (!given.is_one()).then(|| T::from_factor(given));
        Ok(Epilogue {
            alpha: factor(params.alpha),
            beta: factor(params.beta),
            addend: addend.map(|addend| Batched::broadcast(addend, shape)).transpose()?,
            batch: &shape[..shape.len() - 2],
            activation: params.activation,
        })
    }

    fn apply(&self, place: Place, sizes: Sizes, rows: Rows<T::Stored>) {
        let addend = self
            .addend
            .as_ref()
            .map(|addend| addend.nth(place.batch, self.batch).from(place.row, place.column));
        for i in 0..sizes.m {
            // SAFETY: the product has written the part's rows, which no other code accesses.
            let row = unsafe { rows.row(i, sizes.n) };
            if let Some(alpha) = self.alpha {
                for x in row.iter_mut() {
                    *x = alpha.mul(T::load(*x)).store();
                }
            }
            if let Some(addend) = &addend {
                add::<T>(row, &addend.from(i, 0), self.beta);
            }
            T::activate(self.activation, row);
        }
    }
}

/// Adds the first row of a matrix, times a factor.
fn add<T: Number>(row: &mut [T::Stored], addend: &Matrix<'_, T::Stored>, beta: Option<T>) {
    let sum = |x: &mut T::Stored, y: T::Stored| {
        let y = T::load(y);
        *x = T::load(*x).add(beta.map_or(y, |beta| beta.mul(y))).store();
    };
    if addend.column_step == 1 {
        let addend = addend.row(0, 0, row.len());
        for (x, y) in row.iter_mut().zip(addend) {
            sum(x, *y);
        }
    } else {
        for (j, x) in row.iter_mut().enumerate() {
            sum(x, addend.get(0, j));
        }
    }
}

/// Returns the shape of the results, one matrix for each index of the batch.
fn result_shape<S: Bits>(a: &Tensor, b: &Tensor) -> Result<Vec<usize>> {
    let operands = Operands::<S>::new(a, b)?;
    let sizes = [operands.sizes.m, operands.sizes.n];
    Ok(operands.batch.iter().copied().chain(sizes).collect())
}

/// Products computed in the dtype itself.
struct Exact;

impl<C> Body<C, SeveralKernel<LinearParams>> for Exact
where
    C: HasDtype<Element: HasNumber<Number: Combine>>,
{
    fn instance(&self, _: C) -> SeveralKernel<LinearParams> {
        SeveralKernel::new(|params, inputs, outputs| {
            exact::<<C::Element as HasNumber>::Number>(params, inputs, outputs[0])
        })
    }
}

fn exact<T: Combine>(params: &LinearParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    let shape = result_shape::<T::Stored>(inputs[0], inputs[1])?;
    let epilogue = Epilogue::<T>::new(params, inputs.get(2).copied(), &shape)?;
    multiply::<T>(
        inputs[0],
        inputs[1],
        out,
        Some(&|place, sizes, rows| epilogue.apply(place, sizes, rows)),
    )
}

/// Products of halves, whose epilogue is computed in float32, too.
struct InFloat32;

impl<C: HasDtype<Element: Factor>> Body<C, SeveralKernel<LinearParams>> for InFloat32 {
    fn instance(&self, _: C) -> SeveralKernel<LinearParams> {
        SeveralKernel::new(|params, inputs, outputs| {
            let shape = result_shape::<C::Element>(inputs[0], inputs[1])?;
            let addend = inputs.get(2).map(|addend| converted(addend, DType::F32)).transpose()?;
            let epilogue = Epilogue::<f32>::new(params, addend.as_deref(), &shape)?;
            let finish = |place: Place, sizes: Sizes, rows: Rows<f32>| {
                epilogue.apply(place, sizes, rows);
            };
            halves::multiply::<C::Element>(inputs[0], inputs[1], outputs[0], Some(&finish))
        })
    }
}

static KERNELS: LazyLock<DispatchTable<(Dtype,), SeveralKernel<LinearParams>>> =
    LazyLock::new(|| {
        DispatchTable::builder("linear")
            .cover((BOOL_AND_INTEGERS,), Exact)
            .cover((NATIVE_FLOATS,), Exact)
            .cover((HALVES,), InFloat32)
            .build()
            .expect("each dtype is covered once")
    });

impl Kernels<LinearParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<LinearParams>> {
        if op != MATMUL {
            return Offer::No(format!("it has no operation named '{}'", op.name()).into());
        }
        let Some(&dtype) = inputs.first() else { return Offer::No("it has no inputs".into()) };
        if inputs.iter().chain(outputs).any(|other| *other != dtype) {
            let message = format!("its products of {inputs:?} with an epilogue aren't {outputs:?}");
            return Offer::No(message.into());
        }
        offer_several(&KERNELS, (dtype,))
    }
}
