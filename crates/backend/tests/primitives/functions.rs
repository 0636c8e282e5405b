//! Every function for every dtype, against the evaluator.

use std::collections::BTreeMap;

use keyfold_core::{DType, DTypeKind};
use keyfold_expr::{Lowered, functions};
use keyfold_kit::isa::{self, Level};

use crate::compare::worst;
use crate::device::Host;
use crate::{by_evaluator, lowered, on, samples};

/// The page with the table of greatest errors.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/primitives.md");
/// The table's columns.
const COLUMNS: [&str; 6] =
    ["bool, whole", "halves", "float32", "float64", "complex64", "complex128"];
/// The number of random elements of each dtype.
const COUNT: usize = 4000;

fn column(dtype: DType) -> usize {
    match dtype {
        DType::F16 | DType::BF16 => 1,
        DType::F32 => 2,
        DType::F64 => 3,
        DType::C64 => 4,
        DType::C128 => 5,
        _ => 0,
    }
}

/// The greatest error of each function, by column; `None` for dtypes that it refuses.
type Table = BTreeMap<String, [Option<f64>; 6]>;

/// Returns a call of the function as text, and its inputs' dtypes if they are `dtype`.
fn call(name: &str, arguments: usize, dtype: DType) -> (String, Vec<DType>) {
    let inputs = ["x", "y", "z"];
    let text = format!("{name}({})", inputs[..arguments].join(", "));
    let mut dtypes = vec![dtype; arguments];
    if name == "where" {
        dtypes[0] = DType::Bool;
    }
    (text, dtypes)
}

/// Returns the greatest distance of the primitives from the evaluator, and its elements.
fn measure(host: Host, name: &str, lowered: &Lowered) -> (f64, String) {
    let dtypes = lowered.inputs();
    let mut inputs = samples::inputs(dtypes, COUNT, 7);
    let is_power = matches!(name, "pow" | "power");
    let exponents = match dtypes[0].kind() {
        // Negative exponents are a fault, which has a test of its own.
        DTypeKind::Int => Some("where(x < 0, ~x, x)"),
        // Powers of greater moduli are 0 or infinite, and rounding errors determine their angle.
        DTypeKind::Complex => Some("where((abs(x) > 50) & isfinite(x), x / abs(x), x)"),
        _ => None,
    };
    if let (true, Some(exponents)) = (is_power, exponents) {
        let exponents = crate::lowered(exponents, &dtypes[1..]).unwrap();
        inputs[1] = by_evaluator(&exponents, &[&inputs[1]], &[]).unwrap();
    }
    let inputs: Vec<_> = inputs.iter().collect();
    let wanted = by_evaluator(lowered, &inputs, &[]).unwrap();
    let got = on(host, lowered, &inputs, &[]).unwrap();
    let (error, at) = worst(&got, &wanted);
    let given: Vec<_> = inputs.iter().map(|input| input.get_scalar(&[at]).unwrap()).collect();
    let (got, wanted) = (got.get_scalar(&[at]).unwrap(), wanted.get_scalar(&[at]).unwrap());
    (error, format!("{name}{given:?} of {}: {got:?}, not {wanted:?}", dtypes[0]))
}

fn measured(host: fn() -> Host, dtypes: &[DType]) -> (Table, Vec<String>) {
    let (mut table, mut wrong) = (Table::new(), Vec::new());
    let mut seen = Vec::new();
    for (name, arguments) in functions() {
        for &dtype in dtypes {
            let (text, dtypes) = call(name, arguments, dtype);
            let Ok(lowered) = lowered(&text, &dtypes) else { continue };
            // A function's other names lower to the same steps.
            if seen.contains(&(lowered.clone(), dtype)) {
                continue;
            }
            let (error, worst) = measure(host(), name, &lowered);
            seen.push((lowered, dtype));
            if error.is_infinite() {
                wrong.push(worst);
            }
            let row = table.entry(name.to_owned()).or_default();
            let cell = &mut row[column(dtype)];
            *cell = Some(cell.map_or(error, |known| known.max(error)));
        }
    }
    (table, wrong)
}

fn written(table: &Table) -> String {
    let mut text =
        format!("| function | {} |\n|---|---|---|---|---|---|---|\n", COLUMNS.join(" | "));
    for (name, row) in table {
        let cells = row.map(|cell| cell.map_or(String::new(), |error| format!(" {error}")));
        text += &format!("| {name} |{} |\n", cells.join(" |"));
    }
    text
}

/// Returns the table of the documentation page.
fn stated() -> Table {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let page = page.split_once("## Accuracy").unwrap().1;
    let rows =
        page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| function"));
    let cell = |cell: &str| (!cell.is_empty()).then(|| cell.parse::<f64>().unwrap());
    rows.filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let row: Vec<_> = cells[1..].iter().copied().map(cell).collect();
        Some((cells[0].to_owned(), row.try_into().ok()?))
    })
    .collect()
}

/// At the evaluator's lowest instruction level, so that all processors measure the same.
#[test]
fn every_function_is_within_the_stated_error_of_the_evaluator() {
    isa::set_level(Level::ALL[0]);
    let (table, wrong) = measured(Host::complete, &DType::ALL);
    let text = written(&table);
    assert!(wrong.is_empty(), "{text}\n{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    let stated = stated();
    let names = |table: &Table| table.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&table), names(&stated), "docs/primitives.md has another table than:\n{text}");
    for (name, row) in &table {
        for (at, (error, stated)) in row.iter().zip(stated[name]).enumerate() {
            assert_eq!(error.is_some(), stated.is_some(), "{name} of {}", COLUMNS[at]);
            let (Some(error), Some(stated)) = (*error, stated) else { continue };
            let same = error <= stated && stated <= error + 1.0;
            assert!(same, "{name} of {}: {error}, not {stated}; measured:\n{text}", COLUMNS[at]);
        }
    }
}

/// For two functions an error of the primitives is a multiple of the result's last place: silu
/// below -700 is a subnormal number times x, and logaddexp near 0 is a difference.
#[test]
fn functions_with_the_greatest_allowed_error_cost_a_few_ulp() {
    isa::set_level(Level::ALL[0]);
    let (table, wrong) = measured(Host::inexact, &[DType::F32, DType::F64]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let stated = stated();
    for (name, row) in table.iter().filter(|(name, _)| !["silu", "logaddexp"].contains(&&***name)) {
        let cells = row.iter().zip(stated[name]).filter_map(|(error, stated)| error.zip(stated));
        for (error, stated) in cells {
            assert!(error <= 3.0 * stated + 2.0, "{name}: {error}, not {stated}");
        }
    }
}

#[test]
fn every_conversion_is_that_of_the_evaluator() {
    for from in DType::ALL {
        for to in DType::ALL {
            let Ok(lowered) = lowered(&format!("{to}(x)"), &[from]) else {
                assert!(
                    from.is_complex() && !to.is_complex() && to != DType::Bool,
                    "{from} to {to}"
                );
                continue;
            };
            let (error, wrong) = measure(Host::complete(), to.name(), &lowered);
            assert_eq!(error, 0.0, "{wrong}");
        }
    }
}
