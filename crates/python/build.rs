//! Refuses the systems that keyfold isn't built for, in one line, before anything is compiled.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let part = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let target = [part("ARCH"), part("OS"), part("ENV")];
    if target != ["x86_64", "linux", "gnu"] {
        let [arch, os, libc] = target;
        println!(
            "cargo::error=keyfold runs on Linux, x86-64, with glibc 2.28 or later; the target of \
             this build is {os}, {arch}{}",
            if libc.is_empty() { String::new() } else { format!(", {libc}") }
        );
    }
}
