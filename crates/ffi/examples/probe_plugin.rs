//! A plugin for the tests: each kernel uses one part of the SDK.

use keyfold_plugin::{
    Args, DType, Device, Error, ErrorKind, Host, OwnedTensor, OwnedValue, Registrar, Result, Value,
};

keyfold_plugin::plugin!(register);

fn register(host: &mut Registrar<'_>) -> Result<()> {
    host.define("probe::double(Tensor x) -> Tensor")?;
    host.kernel("probe::double", "CPU", double)?;
    host.kernel("probe::double", "Meta", like)?;
    host.define("probe::double_(Tensor(a!) x) -> Tensor(a!)")?;
    host.kernel("probe::double_", "CPU", double_in_place)?;
    host.define("probe::double_out(Tensor x, *, Tensor(a!)? out=None) -> Tensor(a!)")?;
    host.kernel("probe::double_out", "CPU", double_out)?;
    host.kernel("probe::double_out", "Meta", like)?;
    host.define("probe::sum_of(int i, float f, bool b, str s, int[] n, Tensor? t=None) -> float")?;
    host.kernel("probe::sum_of", "CPU", sum_of)?;
    host.define("probe::fail(str kind) -> ()")?;
    host.kernel("probe::fail", "CPU", fail)?;
    host.define("probe::panics(int at) -> int")?;
    host.kernel("probe::panics", "CPU", panics)?;
    host.define("probe::other(Tensor x) -> Tensor")?;
    host.kernel("probe::other", "CPU", other)?;
    host.define("probe::layered(Tensor[] xs, str how, complex z) -> Tensor")?;
    host.kernel("probe::layered", "Pipeline", layer)?;
    host.define("probe::made(int n, ScalarType d, Device v) -> Tensor")?;
    host.kernel("probe::made", "CPU", made)?;
    host.define("probe::swapped(Tensor x) -> (Tensor, Tensor)")?;
    host.kernel("probe::swapped", "CPU", swapped)?;
    host.define("probe::quiet(Tensor x) -> int")?;
    host.kernel("probe::quiet", "CPU", |args: &Args<'_>, _: &Host<'_>| {
        Ok(args.tensor(0)?.numel() as i64)
    })?;
    host.fallthrough("probe::quiet", "Pipeline")
}

fn double(args: &Args<'_>, _: &Host<'_>) -> Result<()> {
    let x = args.tensor(0)?;
    args.output(0)?.fill(x.elements::<f64>()?.map(|v| 2.0 * v))
}

fn like(args: &Args<'_>, host: &Host<'_>) -> Result<OwnedTensor> {
    let x = args.tensor(0)?;
    host.empty(x.shape(), x.dtype(), Device::META)
}

fn double_in_place(args: &Args<'_>, _: &Host<'_>) -> Result<()> {
    let mut x = args.written(0)?;
    for v in x.as_mut_slice::<f64>()? {
        *v *= 2.0;
    }
    Ok(())
}

fn double_out(args: &Args<'_>, _: &Host<'_>) -> Result<()> {
    let x = args.tensor(0)?;
    args.written(1)?.fill(x.elements::<f64>()?.map(|v| 2.0 * v))
}

fn sum_of(args: &Args<'_>, _: &Host<'_>) -> Result<f64> {
    let listed: i64 = args.ints(4)?.iter().sum();
    let tensor: f64 = match args.optional_tensor(5)? {
        Some(t) => t.elements::<f64>()?.sum(),
        None => 0.0,
    };
    let whole = args.int(0)? + i64::from(args.bool(2)?) + args.str(3)?.len() as i64 + listed;
    Ok(whole as f64 + args.float(1)? + tensor)
}

fn fail(args: &Args<'_>, _: &Host<'_>) -> Result<()> {
    let kind = match args.str(0)? {
        "value" => ErrorKind::Value,
        "shape" => ErrorKind::Shape,
        "index" => ErrorKind::Index,
        "memory" => ErrorKind::Memory,
        _ => ErrorKind::KernelFailed,
    };
    Err(Error::new(kind, "as asked"))
}

fn panics(args: &Args<'_>, _: &Host<'_>) -> Result<i64> {
    Ok([1, 2, 3][args.int(0)? as usize])
}

/// Calls an operator that the plugin doesn't have.
fn other(args: &Args<'_>, host: &Host<'_>) -> Result<OwnedValue> {
    host.call("elsewhere::op", &[args.value(0)?])
}

/// With values that it can't read, once as they are and once one by one.
fn layer(args: &Args<'_>, host: &Host<'_>) -> Result<OwnedValue> {
    let below = host.keyset().without(host.keys("Pipeline")?);
    if args.str(1)? == "own" {
        return host.redispatch(below);
    }
    let values = [args.value(0)?, Value::Str("own"), args.value(2)?];
    host.redispatch_with(host.operator(), below, &values)
}

fn made(args: &Args<'_>, host: &Host<'_>) -> Result<OwnedTensor> {
    let mut tensor = host.empty(&[args.int(0)?], args.dtype(1)?, args.device(2)?)?;
    if args.dtype(1)? == DType::F32 {
        tensor.view_mut()?.fill((0..args.int(0)?).map(|v| v as f32))?;
    }
    let view = tensor.view();
    if view.shape() != [args.int(0)?] || !view.is_contiguous() {
        return Err(Error::shape(format!("{view:?} was made")));
    }
    Ok(tensor)
}

/// Several results of a call, taken apart.
fn swapped(args: &Args<'_>, host: &Host<'_>) -> Result<[OwnedTensor; 2]> {
    let both = host.call("elsewhere::pair", &[args.tensor(0)?.into()])?;
    let mut items = both.items()?.into_iter();
    match (items.next(), items.next(), items.next()) {
        (Some(first), Some(second), None) => Ok([second.tensor()?, first.tensor()?]),
        _ => Err(Error::value("elsewhere::pair doesn't return two")),
    }
}
