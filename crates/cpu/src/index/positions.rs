//! The indices of a mask's true elements.

use keyfold_backend::Positions;
use keyfold_core::Result;
use keyfold_tensor::{Tensor, for_each_offset};

use crate::HostBackend;

impl Positions for HostBackend {
    fn positions(&self, mask: &Tensor) -> Result<Vec<Tensor>> {
        let (data, origin) = mask.as_strided_slice::<u8>()?;
        let mut places = vec![Vec::new(); mask.ndim()];
        let mut flat = 0;
        for_each_offset(mask.shape(), [mask.strides()], |[at]| {
            if data[origin.wrapping_add_signed(at)] != 0 {
                let mut rest = flat;
                for (places, &size) in places.iter_mut().zip(mask.shape()).rev() {
                    places.push((rest % size) as i64);
                    rest /= size;
                }
            }
            flat += 1;
        })?;
        let count = places.first().map_or(0, Vec::len);
        places.into_iter().map(|p| Tensor::from_vec(p, &[count])).collect()
    }
}
