//! Primitives, as generated kernels: one for each primitive, its dtypes and the number of
//! dimensions that its loop needs. Loops over neighbouring elements load and store four at once.

use std::fmt::Write;

use keyfold_plugin::{Error, Execution, Operation, Params, Result};

use crate::device::{Arg, Buffer, Device};
use crate::layout::{Flat, Loop};
use crate::stream::{Fault, Stream};
use crate::tensor::Place;
use crate::types::Type::{self, Bool, I64};
use crate::types::prelude;

/// How a primitive's kernel treats its tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Elementwise,
    /// The first input is a table.
    Gather,
    /// Nothing is written.
    Check,
}

/// Returns a primitive's form for those types, and the statement that sets `r` from the elements
/// `x`, `y`, `z` and the position `k`; the reason if there is none.
fn statement(name: &str, inputs: &[Type], output: Type) -> Result<(Form, String), &'static str> {
    let first = inputs.first().copied().unwrap_or(output);
    let integer = !first.is_float() && first != Bool;
    let float = first.is_float() && !first.is_half();
    let to = output.computed();
    let wide = if matches!(first, I64 | Type::U64) { "ulong" } else { "uint" };
    // Integers wrap, so their arithmetic is that of unsigned ones.
    let arithmetic = |operator: &str| match (integer, float) {
        (true, _) => Ok(format!("r = ({to})(({wide})x {operator} ({wide})y);")),
        (_, true) => Ok(format!("r = x {operator} y;")),
        _ => Err("which isn't of numbers that it adds"),
    };
    let function = |text: &str| match float {
        true => Ok(format!("r = {text};")),
        false => Err("which is a function of floats"),
    };
    let bits = |operator: &str| match integer || first == Bool {
        true => Ok(format!("r = ({to})(x {operator} y);")),
        false => Err("which is an operation on bits"),
    };
    let arity = match name {
        "iota" => 0,
        "cast" | "check" | "neg" | "abs" | "sqrt" | "exp" | "log" | "sin" | "cos" | "floor" => 1,
        "where" => 3,
        _ => 2,
    };
    if inputs.len() != arity {
        return Err("which has another number of inputs");
    }
    let same = |types: &[Type]| types.iter().all(|dtype| *dtype == output);
    let fits = match name {
        "iota" => output == I64,
        "cast" => true,
        "check" => first == Bool,
        "gather" => inputs[1] == I64 && first == output,
        "where" => first == Bool && same(&inputs[1..]) && !output.is_half(),
        "equal" | "less" => inputs[0] == inputs[1] && output == Bool && !first.is_half(),
        _ => same(inputs),
    };
    if !fits {
        return Err("whose dtypes don't belong together");
    }
    let text = match name {
        "iota" => "r = (long)k;".to_owned(),
        "cast" => format!("r = {};", output.convert(first, "x")),
        "check" => {
            let fault = "if (!x && atomic_cmpxchg(fault, 0, tag) == 0) fault[1] = 0;";
            return Ok((Form::Check, fault.to_owned()));
        }
        "gather" => return Ok((Form::Gather, "r = LOAD_x(px, y * extra);".to_owned())),
        "add" => arithmetic("+")?,
        "sub" => arithmetic("-")?,
        "mul" => arithmetic("*")?,
        "div" if integer && first.is_signed() => {
            format!("r = y == 0 ? ({to})0 : y == -1 ? ({to})(0 - ({wide})x) : ({to})(x / y);")
        }
        "div" if integer => format!("r = y == 0 ? ({to})0 : ({to})(x / y);"),
        "div" => arithmetic("/")?,
        "neg" => function("-x")?,
        "abs" => function("fabs(x)")?,
        "sqrt" | "exp" | "log" | "sin" | "cos" | "floor" => function(&format!("{name}(x)"))?,
        "equal" => "r = x == y;".to_owned(),
        "less" if first != Bool => "r = x < y;".to_owned(),
        "and" => bits("&")?,
        "or" => bits("|")?,
        "xor" => bits("^")?,
        "shift_left" if integer => format!("r = ({to})(({wide})x << y);"),
        "shift_right" if integer => format!("r = ({to})(x >> y);"),
        "where" => "r = x ? y : z;".to_owned(),
        _ => return Err("which it doesn't know"),
    };
    Ok((Form::Elementwise, text))
}

/// Returns whether a primitive has a kernel.
///
/// # Errors
/// Why it has none.
pub fn support(operation: &Operation<'_>, inputs: &[Type], output: Type) -> Result<()> {
    match statement(operation.name(), inputs, output) {
        Ok(_) => Ok(()),
        Err(reason) => Err(Error::not_supported(reason)),
    }
}

const NAMES: [&str; 3] = ["x", "y", "z"];
/// The values of the bytes of a key that aren't a type.
const STRIDED: u8 = 0x40;
const WIDE: u8 = 0x20;

/// A kernel of one element each: the inputs' types and the statement, and what it is called.
struct Map<'a> {
    name: &'static str,
    form: Form,
    inputs: &'a [Type],
    output: Type,
    statement: &'a str,
}

impl Map<'_> {
    fn declarations(&self) -> (String, String) {
        let from = self.inputs.first().copied().unwrap_or(self.output);
        let mut types = self.output.define("r", from);
        let mut parameters = "global T_r *pr, long ar".to_owned();
        for (dtype, name) in self.inputs.iter().zip(NAMES) {
            types += &dtype.define(name, *dtype);
            let _ = write!(parameters, ", global const T_{name} *p{name}, long a{name}");
        }
        (types, parameters)
    }

    /// Returns the names of the inputs that are read element by element.
    fn elements(&self) -> impl Iterator<Item = &'static str> {
        let skipped = usize::from(self.form == Form::Gather);
        NAMES[..self.inputs.len()].iter().copied().skip(skipped)
    }

    /// Returns a kernel over neighbouring elements; the inputs of a set bit are one element.
    fn flat(&self, single: u8) -> String {
        let (types, parameters) = self.declarations();
        let is_single = |name: &str| {
            NAMES.iter().position(|known| *known == name).is_some_and(|at| single >> at & 1 == 1)
        };
        let mut moves = "pr += ar;".to_owned();
        for name in &NAMES[..self.inputs.len()] {
            let _ = write!(moves, " p{name} += a{name};");
        }
        let (mut four, mut tail) = (String::new(), String::new());
        for name in self.elements() {
            if is_single(name) {
                let _ = write!(four, "C4_{name} {name}4 = (C4_{name})(LOAD_{name}(p{name}, 0));");
                let _ = write!(tail, "C_{name} {name} = LOAD_{name}(p{name}, 0);");
            } else {
                let _ = write!(four, "C4_{name} {name}4 = LOAD4_{name}(p{name}, i);");
                let _ = write!(tail, "C_{name} {name} = LOAD_{name}(p{name}, k);");
            }
        }
        four += " V4_r r4;\n";
        for part in 0..4 {
            let _ = write!(four, "        {{ ulong k = i + {part}; V_r r;");
            for name in self.elements() {
                let _ = write!(four, " C_{name} {name} = {name}4.s{part};");
            }
            let result = if self.form == Form::Check { "" } else { "r4.s0 = r;" };
            let result = result.replace("s0", &format!("s{part}"));
            let _ = writeln!(four, " {} {result} }}", self.statement);
        }
        let (store4, store) = match self.form {
            Form::Check => ("", ""),
            _ => ("STORE4_r(pr, i, r4);", "STORE_r(pr, k, r);"),
        };
        format!(
            "{types}
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run({parameters}, ulong n, long extra, global int *fault, int tag) {{
    ulong i = (ulong)get_global_id(0) * 4;
    {moves}
    if (i + 4 <= n) {{
        {four}        {store4}
    }} else {{
        for (ulong k = i; k < n; k++) {{
            {tail} V_r r;
            {}
            {store}
        }}
    }}
}}
",
            self.statement
        )
    }

    /// Returns a kernel over a loop of that many dimensions.
    fn strided(&self, rank: usize, wide: bool) -> String {
        let (types, parameters) = self.declarations();
        let names: Vec<&str> = ["r"].into_iter().chain(self.elements()).collect();
        let index = if wide { "ulong" } else { "uint" };
        let (mut fields, mut locate, mut load) = (String::new(), String::new(), String::new());
        for name in &names {
            let _ = write!(fields, " long {name}[{rank}];");
        }
        for dim in (0..rank).rev() {
            let _ =
                write!(locate, "    {{ {index} size = ({index})l.shape[{dim}], q = rest / size;");
            let _ = write!(locate, " long p = (long)(rest - q * size); rest = q;");
            for name in &names {
                let _ = write!(locate, " a{name} += p * l.{name}[{dim}];");
            }
            locate += " }\n";
        }
        for name in self.elements() {
            let _ = write!(load, "C_{name} {name} = LOAD_{name}(p{name}, a{name}); ");
        }
        let shift = if self.form == Form::Gather { "px += ax;" } else { "" };
        let store = if self.form == Form::Check { "" } else { "STORE_r(pr, ar, r);" };
        format!(
            "{types}
typedef struct {{ long shape[{rank}];{fields} }} Loop;
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void run({parameters}, Loop l, ulong n, long extra, global int *fault, int tag) {{
    {index} k = get_global_id(0);
    if (k >= n) return;
    {index} rest = k;
    {shift}
{locate}    {load}V_r r;
    {}
    {store}
}}
",
            self.statement
        )
    }

    /// Queues the kernel.
    fn run<const K: usize>(
        &self,
        (device, stream): (&Device, &Stream),
        over: &Loop<K>,
        places: &[Place],
        (extra, tag): (i64, i32),
    ) -> Result<()> {
        let count = over.numel();
        if count == 0 {
            return Ok(());
        }
        let mut key = [0xff; 8];
        for (at, dtype) in self.inputs.iter().chain([&self.output]).enumerate() {
            key[at] = *dtype as u8;
        }
        // The tensors of the loop: the output, then the inputs but a table.
        let skipped = usize::from(self.form == Form::Gather);
        let flats: Option<u8> =
            (0..=self.inputs.len() - skipped).try_fold(0, |bits, k| match (over.is_flat(k)?, k) {
                (Flat::Contiguous, _) => Some(bits),
                (Flat::Single, 0) => None,
                (Flat::Single, k) => Some(bits | 1 << (k - 1 + skipped)),
            });
        let wide = count > u64::from(u32::MAX);
        key[5] = match flats {
            Some(bits) => bits,
            None => STRIDED | if wide { WIDE } else { 0 } | over.kernel_rank() as u8,
        };
        let kernel = device.programs.kernel((self.name, key), || {
            let body = match flats {
                Some(bits) => self.flat(bits),
                None => self.strided(over.kernel_rank(), wide),
            };
            prelude(device.float64) + &body
        })?;
        let mut args: Vec<Arg<'_>> = places.iter().flat_map(Place::args).collect();
        let mut bytes = Vec::new();
        if flats.is_none() {
            over.write_first(self.inputs.len() - skipped + 1, &mut bytes);
            args.push(Arg::Bytes(&bytes));
        }
        args.extend([Arg::U64(count), Arg::I64(extra), Arg::Buffer(stream.word), Arg::I32(tag)]);
        let items = if flats.is_some() { count.div_ceil(4) } else { count };
        device.launch_items(&kernel, stream, &args, items)
    }
}

/// Runs a primitive.
///
/// # Errors
/// The device's.
pub fn execute(
    device: &Device,
    stream: &Stream,
    call: &Execution<'_, Buffer>,
    name: &'static str,
) -> Result<()> {
    let output = call.output(0)?;
    let inputs: Vec<_> = call.inputs().collect();
    let places = [&output].into_iter().chain(&inputs).map(Place::of).collect::<Result<Vec<_>>>()?;
    let types: Vec<Type> = places[1..].iter().map(|place| place.dtype).collect();
    let (form, statement) =
        statement(name, &types, places[0].dtype).map_err(Error::not_supported)?;
    let map = Map { name, form, inputs: &types, output: places[0].dtype, statement: &statement };
    let read = &inputs[usize::from(form == Form::Gather)..];
    let zeros = vec![0; output.shape().len()];
    let mut steps = [zeros.as_slice(); 4];
    steps[0] = output.strides();
    for (steps, input) in steps[1..].iter_mut().zip(read) {
        *steps = input.strides();
    }
    // A check only reads: its output may be of any strides.
    if form == Form::Check {
        steps[0] = steps[1];
    }
    let over = Loop::over(output.shape(), steps)?;
    let extra = match form {
        Form::Gather => inputs[0].strides().first().copied().unwrap_or(1),
        _ => 0,
    };
    let tag = match (form, call.params()) {
        (Form::Check, Params::Pointwise { fault }) if over.numel() > 0 => {
            stream.expect(Fault::Check(fault), call.operator())
        }
        _ => 0,
    };
    map.run((device, stream), &over, &places, (extra, tag))
}

/// Copies elements from place to place, of equal unsigned types.
///
/// # Errors
/// The device's.
pub fn copy(on: (&Device, &Stream), over: &Loop<2>, from: Place, to: Place) -> Result<()> {
    let map = Map {
        name: "copy",
        form: Form::Elementwise,
        inputs: &[from.dtype],
        output: to.dtype,
        statement: "r = x;",
    };
    map.run(on, over, &[to, from], (0, 0))
}

/// Fills a place with an unsigned number.
///
/// # Errors
/// The device's.
pub fn fill(on: (&Device, &Stream), over: &Loop<1>, to: Place, number: u64) -> Result<()> {
    let statement = format!("r = ({})extra;", to.dtype.computed());
    let map = Map {
        name: "fill",
        form: Form::Elementwise,
        inputs: &[],
        output: to.dtype,
        statement: &statement,
    };
    map.run(on, over, &[to], (number.cast_signed(), 0))
}
