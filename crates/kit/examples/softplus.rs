//! Worked example: softplus, `log(1 + exp(x))`, as one scalar function.
//!
//! One line of arithmetic serves every float dtype, contiguous and strided, any rank, in place and out
//! of place.

use keyfold_core::Result;
use keyfold_kit::axes::{
    Contiguity, Cpu, Device, DispatchTable, Dtype, FLOATS, HasDtype, contiguity_of, device_of,
    dtype_of,
};
use keyfold_kit::for_each::{Body, Compute, map_with};
use keyfold_kit::isa::Isa;
use keyfold_kit::math::Real;
use keyfold_kit::view::{FlatView, FlatViewMut, HasLayout};
use keyfold_tensor::Tensor;

/// The body: softplus of one element.
struct Softplus;

impl<T: Compute> Body<T> for Softplus {
    type Output = T;

    #[inline(always)]
    fn call<I: Isa>(&self, x: T) -> T {
        let x = x.widen();
        T::narrow(x.max(Real::ZERO) + (-x.abs()).exp::<I>().log1p::<I>())
    }
}

/// The type of the table's instances; without `x` the result overwrites `out`'s own elements.
type Kernel = fn(out: &mut Tensor, x: Option<&Tensor>) -> Result<()>;

/// The generic kernel, from which all instances are made.
fn kernel<C>(coords: C, out: &mut Tensor, x: Option<&Tensor>) -> Result<()>
where
    C: HasDtype<Element: Compute> + HasLayout,
{
    let out = FlatViewMut::<C::Element, C::Layout>::from_tensor(out)?;
    match x {
        Some(x) => map_with(coords, out, FlatView::<_, C::Layout>::from_tensor(x)?, Softplus),
        None => map_with(coords, out, out, Softplus),
    }
}

/// Writes the softplus of `x` to `out`; without `x`, of `out` itself.
///
/// # Errors
/// [`keyfold_core::ErrorKind::DType`] and [`keyfold_core::ErrorKind::Device`] for tensors that
/// differ, [`keyfold_core::ErrorKind::MissingKernel`] for a dtype that isn't a float, and as
/// [`keyfold_kit::for_each::map`].
pub(crate) fn softplus(out: &mut Tensor, x: Option<&Tensor>) -> Result<()> {
    let table = DispatchTable::<(Device, Dtype, Contiguity), Kernel>::builder("softplus")
        .cover(
            (Cpu, FLOATS),
            keyfold_kit::body!(kernel(out, x) -> Kernel where HasDtype<Element: Compute> + HasLayout),
        )
        .build()?;
    let given = [("out", &*out), ("x", x.unwrap_or(&*out))];
    let point =
        (device_of("softplus", &given)?, dtype_of("softplus", &given)?, contiguity_of(&given));
    table.select(point)?(out, x)
}

fn main() -> Result<()> {
    let mut x = Tensor::from_vec(vec![-1.0_f32, 0.0, 1.0, 100.0], &[2, 2])?;
    softplus(&mut x, None)?;
    assert_eq!(x.to_vec::<f32>()?[1], std::f32::consts::LN_2);
    assert_eq!(x.to_vec::<f32>()?[3], 100.0);
    Ok(())
}
