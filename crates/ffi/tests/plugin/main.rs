//! Plugins: kernels, devices, and the header for plugins in C.

mod c_plugins;
mod devices;
mod header;
mod kernels;
