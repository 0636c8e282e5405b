//! A kernel written with the kit, for every float dtype and layout, and registered through the facade
//! alone: `cargo run -p keyfold --example kit_kernel`.

use keyfold::kit::axes::{Body, DispatchTable, Dtype, F32, F64, HasDtype, OneOf};
use keyfold::kit::for_each::map;
use keyfold::kit::view::{FlatView, FlatViewMut, Strided};
use keyfold::{Device, DispatchKey, Element, Error, Kernel, Result, Tensor};

/// The kernel's requirements of an element type.
trait Real: Element {
    fn leaky(self) -> Self;
}

impl Real for f32 {
    fn leaky(self) -> Self {
        if self > 0.0 { self } else { 0.01 * self }
    }
}

impl Real for f64 {
    fn leaky(self) -> Self {
        if self > 0.0 { self } else { 0.01 * self }
    }
}

type Instance = fn(&Tensor, &mut Tensor) -> Result<()>;

/// The kernel computes one element; the kit handles blocks, vectors, strides and threads.
struct LeakyRelu;

impl LeakyRelu {
    fn run<T: Real>(x: &Tensor, out: &mut Tensor) -> Result<()> {
        let x = FlatView::<T, Strided>::from_tensor(x)?;
        map((), FlatViewMut::<T, Strided>::from_tensor(out)?, (x,), |(x,)| x.leaky())
    }
}

impl<C: HasDtype<Element: Real>> Body<C, Instance> for LeakyRelu {
    fn instance(&self, _: C) -> Instance {
        Self::run::<C::Element>
    }
}

const DTYPES: OneOf<(F32, F64)> = OneOf::new();

fn main() -> Result<()> {
    let dispatcher = keyfold::dispatcher();
    dispatcher.define("demo::leaky_relu(Tensor x) -> Tensor")?;
    let table: DispatchTable<(Dtype,), Instance> =
        DispatchTable::builder("leaky_relu").cover((DTYPES,), LeakyRelu).build()?;
    let kernel = Kernel::typed(move |x: &Tensor| {
        let mut out = Tensor::empty(x.shape(), x.dtype(), Device::CPU)?;
        table.select((x.dtype(),))?(x, &mut out)?;
        Ok::<_, Error>(out)
    });
    dispatcher.register("demo::leaky_relu", DispatchKey::CPU, kernel)?;

    let leaky_relu = dispatcher.typed::<(&Tensor,), Tensor>("demo::leaky_relu")?;
    let x = Tensor::from_slice(&[-100.0_f32, 1.0, -200.0, 2.0], &[2, 2])?;
    assert_eq!(leaky_relu.call(&x)?.to_vec::<f32>()?, [-1.0, 1.0, -2.0, 2.0]);
    // A transposed view is read without a copy.
    assert_eq!(leaky_relu.call(&x.transpose(0, 1)?)?.to_vec::<f32>()?, [-1.0, -2.0, 1.0, 2.0]);
    let error = leaky_relu.call(&Tensor::from_slice(&[1_i64], &[1])?).unwrap_err();
    assert!(error.message().contains("leaky_relu: no kernel at dtype=int64"), "{error}");
    Ok(())
}
