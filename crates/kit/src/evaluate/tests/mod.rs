//! The evaluator against a naive interpreter.

mod calls;
mod cases;
mod fused;
mod naive;
mod non_temporal;
mod random;
mod samples;

#[test]
fn few_parts_are_equal_and_as_many_for_each_thread() {
    let parts =
        |units: usize, grain, threads| units.div_ceil(super::even_grain(units, grain, threads));
    assert_eq!([parts(100, 100, 2), parts(100, 99, 2), parts(100, 51, 2)], [1, 2, 2]);
    assert_eq!(super::even_grain(100, 71, 2), 50);
    assert_eq!([parts(100, 40, 2), parts(100, 34, 4), parts(100, 20, 4)], [4, 3, 8]);
    assert_eq!(super::even_grain(1000, 7, 2), 7);
    assert_eq!([super::even_grain(0, 5, 2), super::even_grain(3, 1, 16)], [5, 1]);
}
