//! A plugin: operators and kernels in a crate of their own, loaded with `keyfold.load_plugin`.
//!
//! - `softplus`: elementwise, over any strides, float32 and float64, with its Meta kernel
//! - `scale_`: in place
//! - `minmax`: two outputs
//! - `count_positive`: returns a number
//! - `axpy`: written with other operators, which the host calls
//! - a layer at "Pipeline" over `softplus`, which counts its calls and redispatches
//! - `root`: refuses a negative number; `tenth`: panics on a short tensor

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use keyfold_plugin::{
    Args, DType, Device, Error, Host, OwnedTensor, OwnedValue, Registrar, Result,
};

keyfold_plugin::plugin!(register);

fn register(host: &mut Registrar<'_>) -> Result<()> {
    host.define("plugin_demo::softplus(Tensor x, float beta=1.0) -> Tensor")?;
    host.kernel("plugin_demo::softplus", "CPU", softplus)?;
    host.kernel("plugin_demo::softplus", "Meta", like_first)?;

    host.define("plugin_demo::scale_(Tensor(a!) x, float k) -> Tensor(a!)")?;
    host.kernel("plugin_demo::scale_", "CPU", scale_in_place)?;

    host.define("plugin_demo::minmax(Tensor x) -> (Tensor, Tensor)")?;
    host.kernel("plugin_demo::minmax", "CPU", minmax)?;
    host.kernel("plugin_demo::minmax", "Meta", two_scalars)?;

    host.define("plugin_demo::count_positive(Tensor x) -> int")?;
    host.kernel("plugin_demo::count_positive", "CPU", count_positive)?;

    host.define("plugin_demo::axpy(Tensor a, Tensor x, Tensor y) -> Tensor")?;
    host.kernel("plugin_demo::axpy", "CompositeImplicitAutograd", axpy)?;

    host.define("plugin_demo::root(Tensor x, int n) -> float")?;
    host.kernel("plugin_demo::root", "CPU", root)?;

    host.define("plugin_demo::tenth(Tensor x) -> float")?;
    host.kernel("plugin_demo::tenth", "CPU", tenth)?;

    register_layer(host)
}

/// A layer and the operator that says how often it ran: state is what the kernels capture.
fn register_layer(host: &mut Registrar<'_>) -> Result<()> {
    let calls = Arc::new(AtomicI64::new(0));
    let counter = Arc::clone(&calls);
    host.kernel("plugin_demo::softplus", "Pipeline", move |_: &Args<'_>, host: &Host<'_>| {
        counter.fetch_add(1, Ordering::Relaxed);
        // The same arguments, below this key.
        host.redispatch(host.keyset().without(host.key()))
    })?;
    host.define("plugin_demo::layer_calls() -> int")?;
    host.kernel("plugin_demo::layer_calls", "CPU", move |_: &Args<'_>, _: &Host<'_>| {
        Ok(calls.load(Ordering::Relaxed))
    })
}

/// `log(1 + exp(beta * x)) / beta`, without overflow.
fn softplus(args: &Args<'_>, _: &Host<'_>) -> Result<()> {
    let (x, beta, mut out) = (args.tensor(0)?, args.float(1)?, args.output(0)?);
    if beta.is_nan() || beta <= 0.0 {
        return Err(Error::value(format!("beta is {beta} and must be positive")));
    }
    let f = |v: f64| (v * beta).max(0.0) / beta + (-(v * beta).abs()).exp().ln_1p() / beta;
    match x.dtype() {
        // Contiguous memory is faster as slices; elements() takes any strides.
        DType::F64 if x.is_contiguous() && out.is_contiguous() => {
            let (from, to) = (x.as_slice::<f64>()?, out.as_mut_slice::<f64>()?);
            to.iter_mut().zip(from).for_each(|(to, from)| *to = f(*from));
            Ok(())
        }
        DType::F64 => out.fill(x.elements::<f64>()?.map(f)),
        DType::F32 => out.fill(x.elements::<f32>()?.map(|v| f(f64::from(v)) as f32)),
        other => Err(Error::dtype(format!("x is {other} and must be float32 or float64"))),
    }
}

/// The Meta kernel of an operator whose output is like its first argument.
fn like_first(args: &Args<'_>, host: &Host<'_>) -> Result<OwnedTensor> {
    let x = args.tensor(0)?;
    host.empty(x.shape(), x.dtype(), Device::META)
}

fn scale_in_place(args: &Args<'_>, _: &Host<'_>) -> Result<()> {
    let (mut x, k) = (args.written(0)?, args.float(1)?);
    let before = x.elements::<f64>()?;
    x.fill(before.map(|v| v * k))
}

fn minmax(args: &Args<'_>, _: &Host<'_>) -> Result<()> {
    let x = args.tensor(0)?;
    if x.numel() == 0 {
        return Err(Error::shape("x has no elements, of which none is the smallest"));
    }
    let least = x.elements::<f64>()?.fold(f64::INFINITY, f64::min);
    let most = x.elements::<f64>()?.fold(f64::NEG_INFINITY, f64::max);
    args.output(0)?.fill([least])?;
    args.output(1)?.fill([most])
}

fn two_scalars(args: &Args<'_>, host: &Host<'_>) -> Result<[OwnedTensor; 2]> {
    let dtype = args.tensor(0)?.dtype();
    Ok([host.empty(&[], dtype, Device::META)?, host.empty(&[], dtype, Device::META)?])
}

fn count_positive(args: &Args<'_>, _: &Host<'_>) -> Result<i64> {
    let x = args.tensor(0)?;
    Ok(x.elements::<f64>()?.filter(|v| *v > 0.0).count() as i64)
}

/// `a * x + y`: the host calls whatever kernels serve the arguments.
fn axpy(args: &Args<'_>, host: &Host<'_>) -> Result<OwnedValue> {
    let product = host.call("aten::mul", &[args.value(0)?, args.value(1)?])?;
    host.call("aten::add", &[product.pass(), args.value(2)?])
}

fn root(args: &Args<'_>, _: &Host<'_>) -> Result<f64> {
    let (x, n) = (args.tensor(0)?, args.int(1)?);
    let sum: f64 = x.elements::<f64>()?.sum();
    if n < 1 {
        return Err(Error::value(format!("argument 'n' is {n} and must be 1 or more")));
    }
    Ok(sum.powf(1.0 / n as f64))
}

/// A kernel with a mistake: the panic becomes an exception of the call.
fn tenth(args: &Args<'_>, _: &Host<'_>) -> Result<f64> {
    let x = args.tensor(0)?;
    Ok(x.as_slice::<f64>()?[9])
}
