//! Criterion benchmarks of the calls in `subject`, to compare versions (`--save-baseline`,
//! `--baseline`). `ratios` prints the table of ratios.

mod subject;

use criterion::{Criterion, criterion_group, criterion_main};

fn calls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("calls");
    for case in subject::cases() {
        group.bench_function(case.name, |bencher| bencher.iter_custom(|times| (case.run)(times)));
    }
    group.finish();
}

criterion_group!(benches, calls);
criterion_main!(benches);
