//! Tests of the reclamation: every interleaving under loom, and the rules on one thread without it.

#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod one_thread;
