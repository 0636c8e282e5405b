//! Drawings of graphs: Graphviz, Mermaid, and SVG without Graphviz. A graph needn't be valid.

mod dot;
mod layout;
mod mermaid;
mod picture;
mod svg;

#[cfg(test)]
mod tests;
