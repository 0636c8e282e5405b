//! Cumulative sums and products, along one dimension.

use keyfold_plugin::{Number, Result};

use crate::memory::View;

pub fn has(name: &str) -> bool {
    matches!(name, "sum" | "prod")
}

pub fn run(name: &str, x: &View, axis: usize, out: &View) -> Result<()> {
    let combine = |a: Number, b: Number| if name == "sum" { a + b } else { a * b };
    let lanes = x.lanes(1 << axis).into_iter().flat_map(|lane| {
        let mut all = None;
        let along = lane.into_iter().map(|number| {
            let number = out.converted(number);
            let next = all.map_or(number, |all| combine(all, number));
            all = Some(next);
            next
        });
        along.collect::<Vec<_>>()
    });
    out.set_lanes(1 << axis, lanes);
    Ok(())
}
