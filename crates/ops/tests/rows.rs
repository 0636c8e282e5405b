//! All rows: the defined operators are those of the rows, the page of operators lists them, and a hand-written
//! derivative equals the symbolic one.

mod cases;

use std::collections::BTreeSet;

use keyfold::Tensor;
use keyfold::layers::autocast::Category;
use keyfold::layers::autograd::{self, Options};
use keyfold::ops::pointwise::{ELEMENTWISE, to_text};
use keyfold::ops::{Gradient, Naming, Row, Rule, Sign, Tangent, aten, rows};
use keyfold_core::{DType, DTypeKind, DeviceType, Result, Scalar};
use keyfold_dispatch::DispatchKey;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::{Value, ValueRef};

#[test]
fn each_operator_is_one_row() {
    let names: BTreeSet<String> = rows().iter().map(|row| row.schema().name.to_string()).collect();
    assert_eq!(names.len(), rows().len());
    keyfold::init();
    // Besides the rows only their overloads `out` are defined, and the operators that enter and leave a vmap.
    let outs = rows().iter().filter_map(Row::out_schema).map(|schema| schema.name.to_string());
    let mut expected: BTreeSet<String> = names.iter().cloned().chain(outs).collect();
    expected.extend(["keyfold::_vmap_enter", "keyfold::_vmap_exit"].map(String::from));
    let defined = keyfold::dispatcher().operators();
    let defined: BTreeSet<String> = defined.iter().map(|op| op.name().to_owned()).collect();
    assert_eq!(defined, expected);
}

/// The signs of an input's elements: all positive for functions that need it, or mixed.
const SIGNS: [[f64; 4]; 2] = [[1.0; 4], [-1.0, 1.0, 1.0, -1.0]];

/// Makes tensors for the inputs of an expression: bools for a condition, else distinct numbers, where sometimes
/// the first input's and sometimes the second's are greater.
fn inputs(row: &Row, signs: [f64; 4]) -> Vec<Tensor> {
    let expr = row.expression().expect("an expression").expr();
    let inputs = expr.inputs().iter().enumerate();
    let made = inputs.map(|(at, input)| match &*input.name {
        "condition" | "mask" => Tensor::from_slice(&[true, false, true, false], &[4]),
        _ => {
            let apart = |i: usize| if i.is_multiple_of(2) { 0.1 } else { -0.1 } * at as f64;
            let item = |i: usize| signs[i] * (0.3 + 0.25 * i as f64 + apart(i));
            Tensor::from_vec((0..4).map(item).collect(), &[4])
        }
    });
    made.map(|tensor| tensor.unwrap()).collect()
}

/// Computes the gradients of a weighted sum of a function's result with respect to its floating inputs.
fn gradients(
    tensors: Vec<Tensor>,
    function: impl FnOnce(&[Tensor]) -> Result<Value>,
) -> Vec<Vec<f64>> {
    let floats = tensors.iter().filter(|tensor| tensor.dtype() == DType::F64);
    let leaves: Vec<Tensor> =
        floats.inspect(|leaf| autograd::set_requires_grad(leaf, true).unwrap()).cloned().collect();
    let result = function(&tensors).unwrap().into_tensor().unwrap();
    let weights = Tensor::from_slice(&[1.0, -2.0, 0.5, 3.0], &[4]).unwrap();
    let loss = aten::sum_all(&aten::mul(&result, &weights).unwrap()).unwrap();
    let grads = autograd::grad(&[loss], &leaves, &[], Options::default(), &|| Ok(())).unwrap();
    grads.into_iter().map(|grad| grad.unwrap().to_vec::<f64>().unwrap()).collect()
}

#[test]
fn derivatives_that_were_written_equal_the_symbolic_ones() {
    keyfold::init();
    let number = Scalar::Float(1.5);
    let mut compared = 0;
    for row in rows() {
        let (Some(expression), Rule::Given(Gradient::Formula(..))) =
            (row.expression(), row.layers().derivative)
        else {
            continue;
        };
        let expr = expression.expr();
        let name = row.schema().name.to_string();
        for signs in SIGNS {
            let tensors = || inputs(row, signs);
            let own = gradients(tensors(), |tensors| {
                let args = row.schema().arguments.iter().map(|argument| {
                    let at = expr.inputs().iter().position(|input| input.name == argument.name);
                    match (&argument.ty, at) {
                        (Type::Tensor, Some(at)) => ValueRef::from(&tensors[at]),
                        _ => ValueRef::from(number),
                    }
                });
                keyfold::dispatcher().call(&name, &args.collect::<Vec<_>>())
            });
            let symbolic = gradients(tensors(), |tensors| {
                let inputs: Vec<ValueRef<'_>> = tensors.iter().map(ValueRef::from).collect();
                let numbers = vec![ValueRef::from(number); expr.params().len()];
                let args = [
                    ValueRef::Refs(&inputs),
                    ValueRef::Refs(&numbers),
                    ValueRef::Str(&to_text(expr)),
                    ValueRef::None,
                ];
                keyfold::dispatcher().call(ELEMENTWISE, &args)
            });
            assert_eq!(own.len(), symbolic.len());
            for (own, symbolic) in own.iter().zip(&symbolic) {
                let same = |(a, b): (&f64, &f64)| {
                    a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-12 * a.abs().max(1.0)
                };
                assert!(own.iter().zip(symbolic).all(same), "{name}: {own:?}, {symbolic:?}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 104, "gradients compared; a new row changes how many");
}

#[test]
fn every_row_has_a_kernel_for_the_cpu() {
    keyfold::init();
    let key = DispatchKey::from_device_type(DeviceType::CPU);
    for row in rows() {
        for schema in [Some(row.schema().clone()), row.out_schema()].into_iter().flatten() {
            let operator = keyfold::dispatcher().operator(&schema.name.to_string()).unwrap();
            assert!(operator.has_kernel(key.into()), "{}", schema.name);
        }
    }
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operators.md");

/// Formats a rule for the table of the page.
fn rule_text<T>(rule: &Rule<T>, given: &str) -> String {
    match rule {
        Rule::Given(_) => given.to_owned(),
        Rule::Derived => "derived".to_owned(),
        Rule::Refused(reason) => format!("none: {reason}"),
    }
}

/// Formats dtypes for the table of the page.
fn in_words(taken: &[DType]) -> String {
    let kinds = [
        ("bool", DTypeKind::Bool),
        ("unsigned", DTypeKind::UInt),
        ("signed", DTypeKind::Int),
        ("floats", DTypeKind::Float),
        ("complex", DTypeKind::Complex),
    ];
    let of = |kind| DType::ALL.into_iter().filter(move |dtype| dtype.kind() == kind);
    let (mut names, mut lacks) = (Vec::new(), Vec::new());
    for (name, kind) in kinds {
        match of(kind).filter(|dtype| taken.contains(dtype)).count() {
            0 => lacks.push(name),
            n if n == of(kind).count() => names.push(name),
            _ => names.extend(of(kind).filter(|dtype| taken.contains(dtype)).map(DType::name)),
        }
    }
    match &lacks[..] {
        [] if names.len() == kinds.len() => "all".to_owned(),
        [one] if names.len() + 1 == kinds.len() => format!("all but {one}"),
        _ => names.join(", "),
    }
}

/// Makes the table of the page, with a line for each row.
fn table() -> String {
    let mut lines = vec![
        "| operator | Python | computes | dtypes | needs | derivative | tangent | batching | autocast |"
            .to_owned(),
        "|---|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    for (row, needs) in rows().iter().zip(cases::needed_groups()) {
        let (dtypes, needs) = (in_words(&cases::dtypes(row)), needs.join(", "));
        let schema = row.schema().to_string();
        let out = if row.out_schema().is_some() { ", and `out`" } else { "" };
        let python = match row.naming() {
            Naming::Unnamed(reason) => format!("none: {reason}"),
            naming => naming.name().map(|name| format!("`keyfold.{name}`")).unwrap_or_default(),
        };
        let computes = match row.expression() {
            Some(expression) => {
                format!("`{}`", expression.expr().to_string().replace('|', "\\|"))
            }
            None if row.is_composite() => "one kernel for all devices".to_owned(),
            None => String::new(),
        };
        let derivative = match row.layers().derivative {
            Rule::Given(Gradient::Detach) => "none: cuts the graph".to_owned(),
            rule => rule_text(&rule, "formula"),
        };
        let tangent = match row.layers().tangent {
            Rule::Given(Tangent::Linear) => "linear".to_owned(),
            Rule::Given(Tangent::Multilinear) => "multilinear".to_owned(),
            rule => rule_text(&rule, "rule"),
        };
        let batching = rule_text(&row.layers().batching, "rule");
        let autocast = match row.layers().autocast {
            Category::Leave => String::new(),
            category => category.to_string(),
        };
        lines.push(format!(
            "| `{schema}`{out} | {python} | {computes} | {dtypes} | {needs} | {derivative} | {tangent} | {batching} | {autocast} |"
        ));
    }
    lines.join("\n")
}

/// `KEYFOLD_WRITE=1` in the environment writes the table into the page instead.
#[test]
fn the_page_of_operators_has_these_rows() {
    keyfold::init();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let begin = page.find("| operator |").expect("a table of operators");
    let end = page[begin..].find("\n\n").map_or(page.len(), |length| begin + length);
    let table = table();
    if std::env::var_os("KEYFOLD_WRITE").is_some() {
        std::fs::write(PAGE, format!("{}{table}{}", &page[..begin], &page[end..])).unwrap();
        return;
    }
    let differs = page[begin..end].trim_end().lines().zip(table.lines()).find(|(a, b)| a != b);
    assert_eq!(differs, None, "docs/operators.md isn't what KEYFOLD_WRITE=1 cargo test writes");
    assert_eq!(page[begin..end].trim_end().len(), table.len());
}

#[test]
fn rows_are_found_by_pythons_operators() {
    let signs = |takes_number: bool, is_reflected: bool| {
        let all = rows().iter().filter_map(Row::sign);
        let kind = |sign: &Sign| (sign.takes_number, sign.is_reflected);
        let fitting = all.filter(|sign| kind(sign) == (takes_number, is_reflected));
        let mut found: Vec<_> = fitting.map(|sign| (sign.text, sign.saves_self)).collect();
        found.sort_unstable();
        found
    };
    let all = "!= % & * ** + - / // < << <= == > >= >> ^ |".split(' ');
    let saves = |these: &[&str]| -> Vec<(&str, bool)> {
        all.clone().map(|sign| (sign, these.contains(&sign))).collect()
    };
    assert_eq!(signs(false, false), saves(&["%", "*", "**", "//"]));
    assert_eq!(signs(true, false), saves(&["%", "**", "//"]));
    let of_numbers: Vec<_> = signs(true, true).into_iter().map(|(sign, _)| sign).collect();
    assert_eq!(of_numbers, ["%", "**", "-", "/", "//", "<<", ">>"]);
    assert_eq!(signs(false, true), []);
}
