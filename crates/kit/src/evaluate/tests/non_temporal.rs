//! Results written by non-temporal stores, in blocks that begin and end anywhere in a cache line.

use keyfold_core::DType;
use keyfold_expr::{Expr, Lowered};

use super::super::*;
use super::calls::view;
use super::cases::on_all_levels;
use super::samples;

/// The bytes of a tensor's whole buffer.
fn bytes(memory: &Tensor) -> Vec<u8> {
    // SAFETY: the memory is the test's, contiguous and initialised.
    unsafe { std::slice::from_raw_parts(memory.raw_data_ptr().unwrap(), memory.nbytes()) }.to_vec()
}

/// Checks rows of `inner` elements with `gap` elements between them, `offset` elements behind the
/// buffer's start: evaluating all rows at once gives the same bytes as evaluating each alone, and writes
/// nothing else.
fn check(text: &str, dtype: DType, inner: usize, gap: usize, offset: usize) {
    let expr = Expr::parse(text).unwrap();
    let dtypes = vec![dtype; expr.inputs().len()];
    let program = Program::new(&Lowered::new(&expr, &dtypes, &[], Some(dtype)).unwrap()).unwrap();
    let rows = 3 * NON_TEMPORAL_BYTES / dtype.size() / inner + 3;
    let pitch = inner + gap;
    let x = samples::samples(&[rows, inner], dtype, 1);
    let y = samples::samples(&[inner], dtype, 2);
    let [whole, apart] =
        [0, 0].map(|seed| samples::samples(&[offset + rows * pitch + 7], dtype, seed));
    let out = view(&whole, &[rows, inner], &[pitch as isize, 1], offset);
    let operands = if dtypes.len() == 2 { vec![&x, &y] } else { vec![&x] };
    // SAFETY: the test alone uses the memory.
    unsafe { evaluate(&program, &operands, &[], &out) }.unwrap();
    for row in 0..rows {
        let x = view(&x, &[inner], &[1], row * inner);
        // Pieces that are too small for non-temporal stores.
        for at in (0..inner).step_by(200) {
            let len = 200.min(inner - at);
            let [x, y] = [&x, &y].map(|input| view(input, &[len], &[1], at + input.offset()));
            let out = view(&apart, &[len], &[1], offset + row * pitch + at);
            let operands = if dtypes.len() == 2 { vec![&x, &y] } else { vec![&x] };
            // SAFETY: the test alone uses the memory.
            unsafe { evaluate(&program, &operands, &[], &out) }.unwrap();
        }
    }
    let (got, expected) = (bytes(&whole), bytes(&apart));
    let differs = got.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{text} of {dtype}, rows of {inner} and {gap}, from {offset}");
}

#[test]
fn rows_of_any_length_and_offset_are_written_completely_and_nothing_else() {
    on_all_levels(|| {
        for text in ["x + y", "(x + y) * y - x", "where(x < y, x, y)"] {
            for inner in [65, 100, 257, 600, 1000, 1030, 2500] {
                for (gap, offset) in [(0, 0), (0, 3), (5, 0), (16, 1)] {
                    check(text, DType::F32, inner, gap, offset);
                }
            }
        }
    });
}

#[test]
fn rows_of_any_dtype_are_written_completely_and_nothing_else() {
    on_all_levels(|| {
        for dtype in [DType::F16, DType::F64, DType::I8, DType::I32, DType::C64, DType::C128] {
            for inner in [257, 1000, 1300] {
                check("x + y", dtype, inner, 0, 1);
                check("(x + y) * y - x", dtype, inner, 3, 1);
            }
        }
    });
}

#[test]
fn a_run_of_any_length_and_offset_is_written_completely_and_nothing_else() {
    on_all_levels(|| {
        for (inner, offset) in
            [(NON_TEMPORAL_BYTES, 0), (NON_TEMPORAL_BYTES + 1, 1), (NON_TEMPORAL_BYTES + 77, 5)]
        {
            for text in ["x", "exp(x) + x", "x * x - x"] {
                check(text, DType::F32, inner, 0, offset);
            }
        }
    });
}
