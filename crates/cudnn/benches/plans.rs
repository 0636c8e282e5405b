//! Criterion benchmarks of the cases in `subject`, to compare versions (`--save-baseline`,
//! `--baseline`). `ratios` prints the table of ratios.

mod subject;

use criterion::{Criterion, criterion_group, criterion_main};

fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plans");
    let all = [subject::hits(&[1, 6, 30]), subject::runs(), subject::executed()];
    for case in all.into_iter().flatten() {
        let times = case.run;
        group.bench_function(case.name, |bencher| bencher.iter_custom(&times));
    }
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
