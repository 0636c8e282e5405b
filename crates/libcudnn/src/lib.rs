//! The real libcudnn for keyfold's cuDNN graphs.
//!
//! [`keyfold_cudnn`] has the graphs as data; this crate finds libcudnn at run time, lowers graphs to its descriptors and
//! asks it for plans: in a helper process for cards that aren't here, in this process for one that is.
//!
//! # Sequences that don't compile
//!
//! libcudnn dereferences descriptors that aren't finalized, and takes a tensor in an operation's place. Its descriptors
//! are private here. What is public takes proven graphs and finalized descriptors, which nothing else makes, so each of
//! the sequences that end its process is an error of the compiler's:
//!
//! ```compile_fail,E0061
//! // A plan's text without the card that it is for.
//! # fn f(library: &std::sync::Arc<keyfold_libcudnn::Library>) {
//! keyfold_libcudnn::engine::reload(library, "{}");
//! # }
//! ```
//! ```compile_fail,E0451
//! // A plan with nothing set.
//! # fn f<T>(plan: T) {
//! let plan = keyfold_libcudnn::engine::Finished { plan, workspace_bytes: 0 };
//! # }
//! ```
//! ```compile_fail,E0308
//! // An operation with nothing set, or of tensors that aren't proven: a graph that nobody validated.
//! # fn f(library: &std::sync::Arc<keyfold_libcudnn::Library>, graph: keyfold_cudnn::GraphSpec) {
//! keyfold_libcudnn::lower(library, &graph);
//! # }
//! ```
//! ```compile_fail,E0308
//! // A graph whose operation is a tensor.
//! # fn f(x: keyfold_cudnn::TensorSpec) -> keyfold_cudnn::GraphSpec {
//! keyfold_cudnn::GraphSpec { operations: vec![x], ..Default::default() }
//! # }
//! ```
//! ```compile_fail,E0308
//! // A convolution whose input is an operation.
//! # use keyfold_cudnn::{OpSpec, Operation, Port, Convolution};
//! # fn f(op: OpSpec) -> OpSpec {
//! OpSpec::new(Operation::ConvFprop(Convolution::new(2)), &[(Port::X, op)], &[])
//! # }
//! ```
//! ```compile_fail,E0451
//! // A plan of an engine's configuration that isn't finalized.
//! # use keyfold_libcudnn::engine::{Candidate, EngineChoice, Ranked};
//! # fn f<T>(config: T) {
//! let candidate = Candidate { config, mode: Ranked::A, engine: EngineChoice::default() };
//! # }
//! ```
//! ```compile_fail,E0382
//! // A descriptor after its end.
//! # fn f(properties: keyfold_libcudnn::Finalized<keyfold_libcudnn::DeviceProperties>) {
//! drop(properties);
//! let target = keyfold_libcudnn::engine::Target::Profile(&properties);
//! # }
//! ```
//!
//! The eighth, tensors of a pointwise operation that aren't finalized, is the third: tensors are descriptors of a proven
//! graph's alone.

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
