//! One operator on the engine alone: `cargo run -p keyfold --no-default-features --example engine`
//! compiles no kernel, no layer and no expression.

use keyfold::{DispatchKey, Kernel, Result, Tensor};

fn main() -> Result<()> {
    let dispatcher = keyfold::dispatcher();
    dispatcher.define("demo::scale(Tensor x, float factor=2.0) -> Tensor")?;
    let scale = Kernel::typed(|x: &Tensor, factor: f64| {
        let scaled = x.to_vec::<f64>()?.into_iter().map(|x| x * factor).collect();
        Tensor::from_vec(scaled, x.shape())
    });
    dispatcher.register("demo::scale", DispatchKey::CPU, scale)?;

    let x = Tensor::from_slice(&[1.0, 2.0], &[2])?;
    let scale = dispatcher.typed::<(&Tensor, f64), Tensor>("demo::scale")?;
    assert_eq!(scale.call(&x, 10.0)?.to_vec::<f64>()?, [10.0, 20.0]);
    Ok(())
}
