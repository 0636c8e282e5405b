//! Tests of the parser: the nodes that texts parse to, the errors of wrong texts, and properties.

mod errors;
mod nodes;
mod properties;
mod semantic_errors;
