//! Comparisons, element by element, with bool results.

use keyfold_core::{DType, Result, Scalar};
use keyfold_dispatch::Kernel;
use keyfold_tensor::Tensor;

use crate::element::{Number, for_dtype};
use crate::elementwise::pair;
use crate::map::{broadcast, map, zip};
use crate::op::{Op, Registrar};
use crate::promote::{Operand, check_supported, common, computed};

/// A question about two numbers of one type; with a NaN only `Ne` holds.
trait Test: 'static {
    fn holds<T: Number>(a: T, b: T) -> bool;
}

struct Eq;
impl Test for Eq {
    #[inline]
    fn holds<T: Number>(a: T, b: T) -> bool {
        a == b
    }
}

struct Ne;
impl Test for Ne {
    #[inline]
    fn holds<T: Number>(a: T, b: T) -> bool {
        a != b
    }
}

struct Lt;
impl Test for Lt {
    #[inline]
    fn holds<T: Number>(a: T, b: T) -> bool {
        a.lt(b)
    }
}

struct Le;
impl Test for Le {
    #[inline]
    fn holds<T: Number>(a: T, b: T) -> bool {
        a.lt(b) | (a == b)
    }
}

struct Gt;
impl Test for Gt {
    #[inline]
    fn holds<T: Number>(a: T, b: T) -> bool {
        b.lt(a)
    }
}

struct Ge;
impl Test for Ge {
    #[inline]
    fn holds<T: Number>(a: T, b: T) -> bool {
        b.lt(a) | (a == b)
    }
}

fn compare<'a, F: Test>(
    op: Op,
    a: impl Into<Operand<'a>>,
    b: impl Into<Operand<'a>>,
) -> Result<Tensor> {
    let (a, b) = (a.into(), b.into());
    let dtype = common(op, a, b)?;
    let mut out = op.output(&broadcast(op, &[a.shape(), b.shape()])?, DType::Bool)?;
    if !op.is_meta() {
        let (a, b) = (a.to_tensor(op, dtype)?, b.to_tensor(op, dtype)?);
        for_dtype!(all: op, computed(dtype), T => op.at(zip(&mut out, &a, &b, F::holds::<T>))?);
    }
    Ok(out)
}

fn logical_not(op: Op, x: &Tensor) -> Result<Tensor> {
    check_supported(op, x.dtype())?;
    let mut out = op.output(x.shape(), DType::Bool)?;
    if !op.is_meta() {
        let wide = Operand::from(x).to_tensor(op, x.dtype())?;
        for_dtype!(all: op, wide.dtype(), T => op.at(map(&mut out, &wide, |x: T| !x.is_nonzero()))?);
    }
    Ok(out)
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    pair!(ops, "eq", compare::<Eq>);
    pair!(ops, "ne", compare::<Ne>);
    pair!(ops, "lt", compare::<Lt>);
    pair!(ops, "le", compare::<Le>);
    pair!(ops, "gt", compare::<Gt>);
    pair!(ops, "ge", compare::<Ge>);
    ops.op("aten::logical_not(Tensor self) -> Tensor", |op| {
        Kernel::typed(move |x: &Tensor| logical_not(op, x))
    })
}
