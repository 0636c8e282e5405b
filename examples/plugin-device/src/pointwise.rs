//! The primitives that every elementwise operator is made of.

use keyfold_plugin::Number::{self, Float, Int};
use keyfold_plugin::{DType, Error, Result};

use crate::memory::View;

pub fn has(name: &str, dtypes: &[DType]) -> bool {
    let is_taken = |dtype: &DType| match name {
        "neg" | "abs" | "sqrt" | "exp" | "log" | "sin" | "cos" | "floor" => dtype.is_floating(),
        "and" | "or" | "xor" | "shift_left" | "shift_right" => !dtype.is_floating(),
        "add" | "sub" | "mul" | "div" | "equal" | "less" => true,
        "cast" | "iota" | "gather" | "where" | "check" => true,
        _ => false,
    };
    dtypes.iter().all(|dtype| is_taken(dtype) && !dtype.is_complex())
}

pub fn run(name: &str, fault: u32, inputs: &[View], out: &View) -> Result<()> {
    let all: Vec<Vec<Number>> = inputs.iter().map(View::numbers).collect();
    match (name, &all[..]) {
        ("iota", []) => out.set((0..out.layout.numel()).map(|at| Int(at as i128))),
        ("check", [given]) if given.iter().all(|n| n.is_true()) => {}
        ("check", _) => return Err(Error::fault(fault)),
        ("gather", [table, at]) => out.set(at.iter().map(|at| table[at.real() as usize])),
        ("where", [which, a, b]) => {
            let chosen = which.iter().zip(a.iter().zip(b));
            out.set(chosen.map(|(which, (a, b))| if which.is_true() { *a } else { *b }));
        }
        (_, [a]) => out.set(a.iter().map(|a| unary(name, *a))),
        (_, [a, b]) => out.set(a.iter().zip(b).map(|(a, b)| binary(name, *a, *b))),
        _ => return Err(Error::not_supported(format!("there is no primitive {name}"))),
    }
    Ok(())
}

fn unary(name: &str, number: Number) -> Number {
    let a = number.real();
    match name {
        "neg" => Float(-a),
        "abs" => Float(a.abs()),
        "sqrt" => Float(a.sqrt()),
        "exp" => Float(a.exp()),
        "log" => Float(a.ln()),
        "sin" => Float(a.sin()),
        "cos" => Float(a.cos()),
        "floor" => Float(a.floor()),
        // `cast`: the output converts.
        _ => number,
    }
}

fn binary(name: &str, a: Number, b: Number) -> Number {
    match (name, a, b) {
        ("add", ..) => a + b,
        ("mul", ..) => a * b,
        ("sub", Int(a), Int(b)) => Int(a - b),
        ("div", Int(a), Int(b)) => Int(a.checked_div(b).unwrap_or(0)),
        ("and", Int(a), Int(b)) => Int(a & b),
        ("or", Int(a), Int(b)) => Int(a | b),
        ("xor", Int(a), Int(b)) => Int(a ^ b),
        ("shift_left", Int(a), Int(b)) => Int(a << b),
        ("shift_right", Int(a), Int(b)) => Int(a >> b),
        ("equal", Int(a), Int(b)) => (a == b).into(),
        ("less", Int(a), Int(b)) => (a < b).into(),
        ("sub", ..) => Float(a.real() - b.real()),
        ("div", ..) => Float(a.real() / b.real()),
        ("equal", ..) => (a.real() == b.real()).into(),
        _ => (a.real() < b.real()).into(),
    }
}
