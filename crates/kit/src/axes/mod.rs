//! Tables over axes: a kernel is written once, and a call selects an instance.
//!
//! The dispatch key selects the backend's kernel; inside the kernel a [`DispatchTable`] selects the
//! instance, by device, dtype, contiguity, placement, determinism, scheduling or the author's own axes
//! ([`axis!`](crate::axis)). A table covers a union of sub-spaces; only their points are instantiated.
//! Its bodies get their [coordinates](Coords) as a zero-sized value that is known at compile time.
//!
//! ```
//! use keyfold_kit::axes::{
//!     Body, Contiguity, Coords, Cpu, Device, DispatchTable, Dtype, FLOATS, Has, HasDtype,
//! };
//!
//! type Describe = fn(usize) -> String;
//!
//! fn describe<C: HasDtype + Has<Contiguity>>(coords: C, count: usize) -> String {
//!     let bytes = count * size_of::<C::Element>();
//!     match coords.value::<Contiguity>() {
//!         Contiguity::Contiguous => format!("{bytes} bytes in a row"),
//!         Contiguity::Strided => format!("{bytes} bytes here and there"),
//!     }
//! }
//!
//! let table = DispatchTable::<(Device, Dtype, Contiguity), Describe>::builder("describe")
//!     .cover(
//!         (FLOATS, Cpu),
//!         keyfold_kit::body!(describe(count) -> Describe where HasDtype + Has<Contiguity>),
//!     )
//!     .build()?;
//! assert_eq!(table.count(), 4 * 2);
//!
//! // Coordinates in any order; selecting and calling are two steps.
//! let instance = table.select((Contiguity::Strided, Device::Cpu, Dtype::F64))?;
//! assert_eq!(instance(3), "24 bytes here and there");
//!
//! let error = table.select((Device::Cuda, Dtype::F32, Contiguity::Strided)).unwrap_err();
//! assert_eq!(
//!     error.message(),
//!     "describe: no kernel at device=cuda, dtype=float32, contiguity=strided; nearest covered, \
//!      where 1 axis differs: device=cpu"
//! );
//! # Ok::<(), keyfold_core::Error>(())
//! ```

#[macro_use]
pub mod type_bool;
#[macro_use]
mod axis;
mod body;
mod coords;
mod error_text;
#[macro_use]
mod type_list;
mod output;
mod space;
mod standard;
mod table;
mod tensor_coordinates;
mod tuples;

pub use axis::*;
pub use body::{Body, Instantiate, InstantiateEach, Plain, Sink, plain};
pub use coords::{At, Coords, Has, HasDtype, Missing, Origin};
pub use output::*;
pub use space::*;
pub use standard::*;
pub use table::{DispatchTable, TableBuilder};
pub use tensor_coordinates::{contiguity_of, coordinates, device_of, dtype_of};
pub use type_list::*;
