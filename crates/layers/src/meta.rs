//! Meta: shapes and dtypes without data.
//!
//! An operator's Meta kernel says which results a call would have. The key has no fallback: an
//! operator without such a kernel is an error that says how to add one.

use keyfold_core::{Device, Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Operator, Value as _};
use keyfold_tensor::{Tensor, Value, ValueRef};

/// A tensor without memory that has this one's shape, strides and dtype.
///
/// # Errors
/// [`ErrorKind::Shape`] where such strides reach further than memory can.
pub fn like(tensor: &Tensor) -> Result<Tensor> {
    let (shape, strides) = (tensor.shape(), tensor.strides());
    // From the first element in memory on, so that negative strides stay inside.
    let back = layout::reach(shape, strides)?.map_or(0, |(first, _)| first.unsigned_abs());
    let last = layout::bounds(shape, strides, back)?.map_or(0, |(_, last)| last + 1);
    let buffer = Tensor::meta(&[last], tensor.dtype())?.into_buffer();
    Tensor::from_parts(buffer, Shape::new(shape)?, Strides::new(strides)?, back)
}

/// Runs an operator's Meta kernel for real arguments: tensors, arrays and devices among them are
/// replaced by their like on meta. Gives the results as tensors without data.
///
/// # Errors
/// [`ErrorKind::MissingKernel`] where the operator has no Meta kernel; the message says how to add
/// one. Those of the call. [`ErrorKind::Return`] when the kernel returns a tensor with data.
pub fn infer(operator: &Operator<Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let metas = args.iter().map(|arg| to_meta(*arg)).collect::<Result<Vec<_>>>()?;
    let args: Vec<_> = metas.iter().map(keyfold_dispatch::Value::as_ref).collect();
    let result = operator.redispatch(DispatchKeySet::from([DispatchKey::Meta]), &args)?;
    match first_real(result.as_ref()) {
        None => Ok(result),
        Some(found) => Err(Error::new(
            ErrorKind::Return,
            format!(
                "{}: the Meta kernel returned {found}; its results must be tensors on meta, which \
                 have a shape and a dtype and no data",
                operator.name()
            ),
        )),
    }
}

fn to_meta(arg: ValueRef<'_>) -> Result<Value> {
    Ok(match arg {
        ValueRef::Tensor(tensor) => Value::Tensor(like(tensor)?),
        ValueRef::Foreign(object) if object.is_tensor() => Value::Tensor(like(object.tensor()?)?),
        ValueRef::Device(_) => Value::Device(Device::META),
        list if list.list_len().is_some() => {
            Value::List(list.items().map(to_meta).collect::<Result<_>>()?)
        }
        other => Value::from_ref(other)?,
    })
}

/// What the first tensor with data among the results is.
fn first_real(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Tensor(tensor) if tensor.device() == Device::META => None,
        ValueRef::Tensor(_) => Some(Value::describe(value)),
        ValueRef::Foreign(object) if object.is_tensor() => {
            (object.tag().device() != Some(Device::META)).then(|| object.describe())
        }
        list => list.items().find_map(first_real),
    }
}

#[cfg(test)]
mod tests {
    use keyfold_core::DType;
    use keyfold_dispatch::{Dispatcher, Kernel, Override};

    use super::*;

    fn operator(name: &str) -> std::sync::Arc<Operator<Value>> {
        crate::dispatcher().operator(name).unwrap()
    }

    #[test]
    fn a_like_has_the_same_form_and_no_memory() {
        let x = Tensor::from_slice(&[0.0_f32; 24], &[2, 3, 4]).unwrap();
        let views = [
            x.clone(),
            x.transpose(0, 2).unwrap(),
            x.flip(&[0, 1]).unwrap(),
            x.slice(1, Some(1), None, 2).unwrap(),
            x.slice(0, Some(2), None, 1).unwrap(),
            x.select(0, 1).unwrap().broadcast_to(&[5, 3, 4]).unwrap(),
            Tensor::from_slice(&[1_i64], &[]).unwrap(),
        ];
        for view in views {
            let like = like(&view).unwrap();
            assert_eq!(like.shape(), view.shape());
            assert_eq!(like.strides(), view.strides());
            assert_eq!((like.dtype(), like.device()), (view.dtype(), Device::META));
        }
    }

    #[test]
    fn results_have_form_and_no_data() {
        let x = Tensor::from_slice(&[1.0_f32; 6], &[2, 3]).unwrap();
        let y = Tensor::from_slice(&[1.0_f64; 6], &[3, 2]).unwrap();
        let result = infer(&operator("aten::matmul"), &[(&x).into(), (&y).into()]).unwrap();
        let result = result.into_tensor().unwrap();
        assert_eq!((&**result.shape(), result.dtype()), (&[2, 2][..], DType::F64));
        assert_eq!(result.device(), Device::META);
        let list = ValueRef::Tensors(std::slice::from_ref(&x));
        let result = infer(&operator("aten::stack"), &[list]).unwrap().into_tensor().unwrap();
        assert_eq!(&**result.shape(), [1, 2, 3]);
    }

    #[test]
    fn factories_and_devices_go_to_meta() {
        let sizes = [1_i64 << 40, 3];
        let result = infer(&operator("aten::zeros"), &[(&sizes[..]).into()]).unwrap();
        assert_eq!(result.into_tensor().unwrap().device(), Device::META);
        let args = [(&sizes[..]).into(), DType::F32.into(), Device::CPU.into()];
        let result = infer(&operator("aten::zeros"), &args).unwrap().into_tensor().unwrap();
        assert_eq!((result.device(), result.dtype()), (Device::META, DType::F32));
    }

    #[test]
    fn a_missing_rule_says_how_to_add_one() {
        let d = Dispatcher::<Value>::new();
        d.define("f(Tensor x) -> Tensor").unwrap();
        let f = d.operator("f").unwrap();
        let x = Tensor::from_slice(&[1.0_f32], &[1]).unwrap();
        let error = infer(&f, &[(&x).into()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingKernel);
        assert!(error.message().contains("register_fake(\"f\")"), "{error}");
    }

    #[test]
    fn a_rule_that_returns_data_is_refused() {
        let d = Dispatcher::<Value>::new();
        d.define("f(Tensor x) -> Tensor").unwrap();
        let real = Kernel::typed(|_x: &Tensor| Tensor::from_slice(&[1.0_f32], &[1]));
        d.implement("f", DispatchKey::Meta, real, Override::Error).unwrap();
        let x = Tensor::from_slice(&[1.0_f32], &[1]).unwrap();
        let error = infer(&d.operator("f").unwrap(), &[(&x).into()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Return);
        assert!(error.message().contains("float32[1] on cpu"), "{error}");
    }
}
