//! A convolution and its gradients, of dense tensors of one type.

use keyfold_core::Result;
use keyfold_kit::isa::in_use;

use super::geometry::Geometry;
use super::lanes::Real;
use super::product::{Finish, Places, Product, Weight};
use super::shared::Shared;
use super::tile::TileShape;
use super::weight_gradient::WeightGradient;
use super::window::Three;

/// Computes the output.
///
/// # Safety
/// The tensors are as large as the geometry says; nothing else uses the output.
pub(super) unsafe fn forward<T: Real>(
    geometry: &Geometry,
    (input, weight): (*const T, *const T),
    bias: Option<&[T]>,
    output: Shared<T>,
    finish: Finish<'_, T>,
) -> Result<()> {
    let Geometry { images, groups, channels, rows, output: size, .. } = *geometry;
    let (pixels, taps) = (geometry.pixels(), geometry.taps());
    let product = Product {
        shape: TileShape::for_rows::<T>(in_use(), rows),
        window: &geometry.forward(),
        images,
        groups,
        channels,
        rows,
        source: input,
        weight: Weight {
            numbers: weight,
            of_group: rows * channels * taps,
            of_row: channels * taps,
            of_channel: taps,
        },
        bias,
        result: output,
        places: Places {
            base: 0,
            image: groups * rows * pixels,
            channel: pixels,
            pixel: [size[1] * size[2], size[2], 1],
        },
        finish,
    };
    // SAFETY: the caller's promise.
    unsafe { product.run() }
}

/// Computes the gradient of the input, or the output of a transposed convolution, of which the input is
/// the gradient.
///
/// # Safety
/// As of [`forward`].
pub(super) unsafe fn input_gradient<T: Real>(
    geometry: &Geometry,
    (gradient, weight): (*const T, *const T),
    bias: Option<&[T]>,
    result: Shared<T>,
    finish: Finish<'_, T>,
) -> Result<()> {
    let Geometry { images, groups, channels, rows, input: size, stride, .. } = *geometry;
    let (pixels, taps) = (geometry.input_pixels(), geometry.taps());
    let steps = [size[1] * size[2], size[2], 1];
    // A stride beyond the size has no more remainders than there are places.
    let stride: Three<usize> = std::array::from_fn(|d| stride[d].min(size[d]));
    for remainder in 0..stride.iter().product() {
        let [_, by_h, by_w] = stride;
        let remainder = [remainder / by_w / by_h, remainder / by_w % by_h, remainder % by_w];
        let product = Product {
            shape: TileShape::for_rows::<T>(in_use(), channels),
            window: &geometry.backward(remainder),
            images,
            groups,
            channels: rows,
            rows: channels,
            source: gradient,
            weight: Weight {
                numbers: weight,
                of_group: rows * channels * taps,
                of_row: taps,
                of_channel: channels * taps,
            },
            bias,
            result,
            places: Places {
                base: (0..3).map(|d| remainder[d] * steps[d]).sum(),
                image: groups * channels * pixels,
                channel: pixels,
                pixel: [0, 1, 2].map(|d| stride[d] * steps[d]),
            },
            finish,
        };
        // SAFETY: the caller's promise; the places of each remainder are others.
        unsafe { product.run() }?;
    }
    Ok(())
}

/// Computes the gradient of the weight.
///
/// # Safety
/// As of [`forward`].
pub(super) unsafe fn weight_gradient<T: Real>(
    geometry: &Geometry,
    (input, gradient): (*const T, *const T),
    result: Shared<T>,
) -> Result<()> {
    let shape = TileShape::of::<T>(in_use());
    // SAFETY: the caller's promise.
    unsafe { WeightGradient { shape, geometry, input, gradient, result }.run() }
}
