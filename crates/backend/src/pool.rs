//! Pooling over windows, and its gradients.

use crate::{Group, Groups, Kernels, Operation, Params};

/// The parameters of the group `pool`.
///
/// Each operation pools the last `dims` dimensions of its tensors, from `in` elements to `out`; the others,
/// `P`, are the planes. Inputs have any strides; outputs are contiguous.
///
/// | name | inputs | outputs |
/// | --- | --- | --- |
/// | `max` | x `[P, in]` | the greatest element of each window `[P, out]`, its index `[P, out]` (int64) |
/// | `max_backward` | gradient `[P, out]`, indices `[P, out]` (int64) | gradient of x `[P, in]` |
/// | `average` | x `[P, in]` | the mean of each window `[P, out]` |
/// | `average_backward` | gradient `[P, out]` | gradient of x `[P, in]` |
/// | `adaptive_average` | x `[P, in]` | the mean of each window `[P, out]` |
/// | `adaptive_average_backward` | gradient `[P, out]` | gradient of x `[P, in]` |
///
/// Along a dimension, window `o` has the elements `o stride - padding + k dilation` for `k` below `kernel`; those
/// that aren't in the dimension are padding. Windows of averages have no dilation. `max` leaves padding out, and
/// each window has an element that isn't padding; NaN is the greatest, and of equal elements the first one
/// counts. An index counts through the plane in row-major order. `average` adds zeros for padding, and divides
/// by `divisor`; if that is 0, by the number of elements, among them padding where `count_include_pad` is 1, but
/// nothing behind the padding. An adaptive window `o` has the elements from `floor(o in / out)` to
/// `ceil((o + 1) in / out)`, exclusive.
///
/// `max` takes integers and floats, the others floats; halves are added up in float32. `max_backward` fails
/// with [`keyfold_core::ErrorKind::Index`] for an index that isn't in the plane.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct PoolParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// The number of pooled dimensions, 1 to 3. As many items of the next fields are used.
    pub dims: u32,
    /// 1 if padding counts among the elements of a window, else 0.
    pub count_include_pad: u32,
    /// The elements of a window.
    pub kernel: [i64; 3],
    /// The distance between windows.
    pub stride: [i64; 3],
    /// The elements that are added on either side.
    pub padding: [i64; 3],
    /// The distance between the elements of a window.
    pub dilation: [i64; 3],
    /// The divisor of sums; 0 for the number of elements.
    pub divisor: i64,
}

impl Params for PoolParams {
    const GROUP: Group = Group::Pool;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.pool
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        vec![
            ("dims", self.dims.into()),
            ("count_include_pad", self.count_include_pad.into()),
            ("kernel", self.kernel.into()),
            ("stride", self.stride.into()),
            ("padding", self.padding.into()),
            ("dilation", self.dilation.into()),
            ("divisor", self.divisor.into()),
        ]
    }
}
