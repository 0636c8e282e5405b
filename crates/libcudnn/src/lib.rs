//! The real libcudnn for keyfold's cuDNN graphs.
//!
//! [`keyfold_cudnn`] has the graphs as data; this crate finds libcudnn at run time, lowers graphs to its descriptors and
//! asks it for plans: in a helper process for cards that aren't here, in this process for one that is.

mod card;
mod cuda;
mod descriptor;
pub mod engine;
pub mod find;
pub mod helper;
mod known;
pub mod legal;
mod library;
mod lower;
mod names;
mod numbered;
pub mod planning;
mod profile;
mod remote;
mod status;
pub mod store;

pub use card::CardPlanner;
pub use descriptor::Finalized;
pub use library::{CudnnError, Library, Version};
pub use lower::{Constant, Lowered, lower};
pub use names::{DeviceProperties, OperationGraph};
pub use planning::{PartDocument, PlanDocument, Planned, plan};
pub use profile::Profile;
pub use remote::RemotePlanner;
