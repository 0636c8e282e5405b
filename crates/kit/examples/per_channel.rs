//! Worked example: images `[N, C, H, W]` times a factor per channel `[C]`, through ranked views.

use keyfold_core::Result;
use keyfold_kit::axes::HasDtype;
use keyfold_kit::for_each::{Compute, map_indexed};
use keyfold_kit::view::{HasLayout, RankedView, RankedViewMut, Strided};
use keyfold_tensor::Tensor;

/// Writes `x[n, c, h, w] * scale[c]` to `out`; without `x` it scales `out` in place.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Shape`] for other ranks and sizes,
/// [`keyfold_core::ErrorKind::KernelPanic`] for fewer factors than channels, and as
/// [`keyfold_kit::for_each::map`].
pub(crate) fn per_channel<C>(
    coords: C,
    out: &mut Tensor,
    x: Option<&Tensor>,
    scale: &Tensor,
) -> Result<()>
where
    C: HasDtype<Element: Compute> + HasLayout,
{
    let scale = RankedView::<C::Element, 1, Strided>::from_tensor(scale)?;
    let out = RankedViewMut::<C::Element, 4, C::Layout>::from_tensor(out)?;
    let body = |[_, c, _, _]: [usize; 4], x: C::Element| {
        Compute::narrow(x.widen() * scale.at([c]).widen())
    };
    match x {
        Some(x) => map_indexed(coords, out, RankedView::<_, 4, C::Layout>::from_tensor(x)?, body),
        None => map_indexed(coords, out, out, body),
    }
}

fn main() -> Result<()> {
    use keyfold_kit::axes::{Contiguous, Coords, F32, Origin};
    let mut x = Tensor::from_vec(vec![1.0_f32; 8], &[1, 2, 2, 2])?;
    let scale = Tensor::from_vec(vec![2.0_f32, 3.0], &[2])?;
    per_channel(Origin.with(F32).with(Contiguous), &mut x, None, &scale)?;
    assert_eq!(x.to_vec::<f32>()?, [2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]);
    Ok(())
}
