//! Reduces a failing case to a small one, and writes it as a Python program.

use std::fmt::Write as _;

use keyfold_core::{DType, DTypeKind, Scalar};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::Value;

use crate::array::{Arg, Array, Layout, Operand};
use crate::case::{Case, Change, Plan, Way};
use crate::elements::Values;
use crate::number::Number;
use crate::report::Symptom;
use crate::run::{Outcome, Target, is_only_written, run};

/// The most runs of a case.
const MOST_RUNS: usize = 80;
/// The most elements of a tensor in a program.
const MOST_ELEMENTS: usize = 512;

/// Returns a Python program with the smallest call found that fails like the case; `None` where no
/// small one does.
pub(crate) fn reproducer(target: &Target, case: &Case, symptom: Symptom) -> Option<String> {
    let fails = |change: &Change| -> Option<Plan> {
        let plan = case.plan(target.device, change).ok()??;
        match run(target, case.row, &plan) {
            Outcome::Failed(fault)
                if (fault.symptom == Symptom::CallFailed) == (symptom == Symptom::CallFailed) =>
            {
                Some(plan)
            }
            _ => None,
        }
    };
    let mut best = Change::default();
    let mut plan = fails(&best)?;
    let mut runs = 0;
    loop {
        let shape = best.shape.clone().or_else(|| first_shape(&plan))?;
        let smaller = candidates(&best, &shape, case).into_iter().find_map(|change| {
            runs += 1;
            (runs < MOST_RUNS).then(|| fails(&change).map(|plan| (change, plan))).flatten()
        });
        let Some((change, smaller)) = smaller else { break };
        (best, plan) = (change, smaller);
    }
    let operands = plan.args.iter().flat_map(Arg::operands);
    let largest = operands.map(|operand| operand.array.items.len()).max().unwrap_or(0);
    (largest <= MOST_ELEMENTS).then(|| program(target, case, &plan))
}

fn first_shape(plan: &Plan) -> Option<Vec<usize>> {
    let first = plan.args.iter().flat_map(Arg::operands).next();
    first.map(|operand| operand.array.shape.clone())
}

/// Returns simpler cases, the simplest first.
fn candidates(best: &Change, shape: &[usize], case: &Case) -> Vec<Change> {
    let mut all = Vec::new();
    let with = |shape: Vec<usize>| Change { shape: Some(shape), ..best.clone() };
    for (d, size) in shape.iter().enumerate() {
        // To one, to half, by one.
        for smaller in [1, size / 2, size.saturating_sub(1)] {
            if smaller > 0 && smaller < *size {
                let mut shape = shape.to_vec();
                shape[d] = smaller;
                all.push(with(shape));
            }
        }
    }
    if shape.len() > 1 {
        all.push(with(shape[1..].to_vec()));
    }
    if best.layout.is_none() {
        all.push(Change { layout: Some(Layout::Contiguous), ..best.clone() });
    }
    if best.way.is_none() && case.row.out_schema().is_some() {
        all.push(Change { way: Some(Way::Fresh), ..best.clone() });
    }
    if best.values.is_none() {
        all.push(Change { values: Some(Values::Smooth), ..best.clone() });
    }
    all
}

/// Returns a number as Python writes it.
fn number(number: Number, dtype: DType) -> String {
    let float = |x: f64| match x {
        x if x.is_nan() => "nan".to_owned(),
        x if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.to_owned(),
        x => format!("{x:?}"),
    };
    match (number, dtype.kind()) {
        (number, DTypeKind::Bool) => if number.truth() { "True" } else { "False" }.to_owned(),
        (Number::Whole(whole), _) => whole.to_string(),
        (Number::Float(x), _) => float(x),
        (Number::Complex(c), _) => format!("complex({}, {})", float(c.re), float(c.im)),
    }
}

/// Returns an array as nested lists.
fn nested(array: &Array) -> String {
    fn part(array: &Array, index: &mut Vec<usize>, text: &mut String) {
        let depth = index.len();
        if depth == array.shape.len() {
            text.push_str(&number(array.at(index), array.dtype));
            return;
        }
        text.push('[');
        for i in 0..array.shape[depth] {
            if i > 0 {
                text.push_str(", ");
            }
            index.push(i);
            part(array, index, text);
            index.pop();
        }
        text.push(']');
    }
    let mut text = String::new();
    part(array, &mut Vec::new(), &mut text);
    text
}

/// Returns an argument that isn't a tensor, as Python writes it.
fn literal(value: &Value) -> String {
    match value {
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Str(text) => format!("{text:?}"),
        Value::DType(dtype) => format!("\"{dtype}\""),
        Value::Device(device) => format!("\"{device}\""),
        Value::List(items) => {
            format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
        other => match other.as_ref().scalar() {
            Some(Scalar::Int(i)) => i.to_string(),
            Some(scalar) => number(Number::of(scalar), DType::F64),
            None => "None".into(),
        },
    }
}

/// Returns the statements that make a tensor of a layout.
fn made(name: &str, operand: &Operand, device: &str) -> String {
    let Operand { array, layout } = operand;
    let data = nested(array);
    let whole =
        format!("{name} = kf.asarray({data}, dtype=\"{}\", device=\"{device}\")", array.dtype);
    let rank = array.shape.len();
    let shape = format!("{:?}", array.shape).replace('[', "(").replace(']', ",)");
    let dims = (0..rank).rev().map(|d| d.to_string()).collect::<Vec<_>>().join(", ");
    let relaid = match layout {
        _ if rank == 0 || array.items.is_empty() => return whole,
        Layout::Contiguous => return whole,
        Layout::Offset => format!(
            "{name} = kf.reshape(kf.concat([kf.reshape({name}, (-1,))[:1], \
             kf.reshape({name}, (-1,))])[1:], {shape})"
        ),
        Layout::Transposed => format!(
            "{name} = kf.permute_dims(kf.permute_dims({name}, ({dims},)).contiguous(), ({dims},))"
        ),
        Layout::Sliced => format!("{name} = kf.stack([{name}, {name}], axis=-1)[..., 0]"),
        Layout::Broadcast => format!("{name} = kf.broadcast_to({name}[:1], {shape})"),
        Layout::Negative => format!("{name} = kf.flip(kf.flip({name}).contiguous())"),
    };
    format!("{whole}\n{relaid}  # {}", layout.name())
}

fn program(target: &Target, case: &Case, plan: &Plan) -> String {
    let device = target.device.to_string();
    let mut lines = vec![
        "import keyfold as kf".to_owned(),
        "nan, inf = float(\"nan\"), float(\"inf\")".to_owned(),
    ];
    let mut given = Vec::new();
    let mut count = 0;
    let mut tensor = |operand: &Operand, lines: &mut Vec<String>| {
        let name = format!("x{count}");
        count += 1;
        lines.push(made(&name, operand, &device));
        name
    };
    let (mut first, mut written) = (None, Vec::new());
    for (arg, argument) in plan.args.iter().zip(&case.row.schema().arguments) {
        let text = match arg {
            Arg::Tensor(operand) => {
                let name = tensor(operand, &mut lines);
                if is_only_written(case.row, argument) {
                    written.push(name.clone());
                }
                first.get_or_insert(name.clone());
                name
            }
            Arg::Tensors(all) => {
                let each = all.iter().map(|one| match one {
                    Some(operand) => tensor(operand, &mut lines),
                    None => "None".into(),
                });
                let each: Vec<String> = each.collect();
                format!("[{}]", each.join(", "))
            }
            Arg::Plain(value) => literal(value),
        };
        given.push(match argument.kwarg_only {
            true => format!("{}={text}", argument.name),
            false => text,
        });
    }
    let mut operator = case.row.schema().name.to_string();
    let several = plan.expected.len() > 1;
    if let (Way::Out(_) | Way::InPlace, Some(schema)) = (plan.way, case.row.out_schema()) {
        operator = schema.name.to_string();
        let outs = &schema.arguments[case.row.schema().arguments.len()..];
        for (expected, argument) in plan.expected.iter().zip(outs) {
            let out = match (plan.way, &first) {
                _ if expected.absent => "None".to_owned(),
                (Way::Out(layout), _) => {
                    let dtype = expected.array.dtype;
                    let zero = Number::Whole(0).cast(dtype);
                    let array = Array::from_fn(dtype, &expected.array.shape, |_| zero);
                    let layout =
                        if layout == Layout::Broadcast { Layout::Contiguous } else { layout };
                    lines.push(made(&argument.name, &Operand { array, layout }, &device));
                    argument.name.to_string()
                }
                (_, first) => first.clone().unwrap_or_default(),
            };
            given.push(format!("{}={out}", argument.name));
        }
    }
    let mut text = lines.join("\n");
    let call = format!("kf.get_op(\"{operator}\")({})", given.join(", "));
    let returns = &case.row.schema().returns;
    let is_list = matches!(&returns[..], [one] if matches!(one.ty, Type::List(..)));
    let is_lone = returns.len() == 1 && !is_list;
    match (several, is_lone) {
        (false, true) => drop(write!(text, "\nprint({call}.tolist())")),
        // Tensors that are only written to are printed by their names.
        (_, true) => drop(write!(text, "\nresults = [{call}]")),
        (_, false) if returns.is_empty() => drop(write!(text, "\n{call}\nresults = []")),
        (_, false) => drop(write!(text, "\nresults = list({call})")),
    }
    if several || !is_lone {
        let _ = write!(text, "\nresults += [{}]", written.join(", "));
        text.push_str(
            "\nfor result in results:\n    print(None if result is None else result.tolist())",
        );
    }
    for expected in &plan.expected {
        let array = &expected.array;
        let _ = match (expected.absent, expected.any) {
            (true, _) => write!(text, "\n# None"),
            (_, true) => write!(text, "\n# {}{:?}", array.dtype, array.shape),
            _ => write!(text, "\n# {}", nested(&array.cast(array.dtype))),
        };
    }
    text
}
