//! Worked example: Morton codes (Z-order) of points, through ranked views.
//!
//! The bits of a point's coordinates are interleaved, so that points near each other in space are
//! near each other in the order of their codes.

use keyfold_core::{Element, Error, ErrorKind, Result};
use keyfold_kit::for_each::{Coordinates, generate};
use keyfold_kit::view::{HasLayout, RankedView, RankedViewMut};
use keyfold_tensor::Tensor;

/// Spreads the lowest bits of `x`, `apart` bits from each other.
#[inline(always)]
fn spread(x: u64, bits: u32, apart: usize) -> u64 {
    let mut code = 0;
    for bit in 0..bits as usize {
        code |= (x >> bit & 1) << (bit * apart);
    }
    code
}

/// Writes the code of each point `x[n, ..]` to `out[n]`: bit `b` of coordinate `d` becomes bit `b * D +
/// d`; bits that don't fit into 64 are dropped.
///
/// # Errors
/// [`keyfold_core::ErrorKind::Shape`] for other shapes than `[N, D]` and `[N]`, and as
/// [`keyfold_kit::for_each::map`].
pub(crate) fn morton<C, T>(coords: C, out: &mut Tensor, x: &Tensor) -> Result<()>
where
    C: HasLayout + Coordinates,
    T: Element + Into<u64>,
{
    let x = RankedView::<T, 2, C::Layout>::from_tensor(x)?;
    let out = RankedViewMut::<u64, 1, C::Layout>::from_tensor(out)?;
    let [points, axes] = x.sizes();
    if out.sizes() != [points] {
        return Err(Error::new(
            ErrorKind::Shape,
            format!("morton: 'x' has {points} points, but 'out' has sizes {:?}", out.sizes()),
        ));
    }
    let bits = (64 / axes.max(1) as u32).min(8 * size_of::<T>() as u32);
    generate(coords, out, |[n]| {
        (0..axes).fold(0, |code, d| code | spread(x.at([n, d]).into(), bits, axes) << d)
    })
}

fn main() -> Result<()> {
    use keyfold_kit::axes::{Contiguous, Coords, Origin};
    let points = Tensor::from_vec(vec![0_u32, 0, 1, 0, 0, 1, 3, 5], &[4, 2])?;
    let mut codes = Tensor::from_vec(vec![0_u64; 4], &[4])?;
    morton::<_, u32>(Origin.with(Contiguous), &mut codes, &points)?;
    assert_eq!(codes.to_vec::<u64>()?, [0, 1, 2, 0b10_01_11]);
    Ok(())
}
