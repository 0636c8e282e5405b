//! The inferred shape, dtype, strides and aliasing of a result, and their comparison with a kernel's result.

use keyfold_backend::ReduceParams;
use keyfold_core::{DType, Error, ErrorKind, Result, Shape, Strides, layout};
use keyfold_dispatch::Value as _;
use keyfold_layers::autograd::TensorMeta;
use keyfold_layers::pipeline::{Evaluated, Form, Memory};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::infer::{CallPlan, Run};

/// The memory of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aliasing {
    /// New memory.
    Fresh,
    /// The memory of an argument, from an element on.
    View {
        /// The argument's position.
        argument: usize,
        /// The first element's offset in the argument's memory, in elements.
        offset: usize,
    },
    /// The result is the argument at this position.
    Argument(usize),
}

/// The inferred properties of a result. Results of equal properties are equal, however they are computed.
#[derive(Clone, Debug)]
pub struct Inferred {
    /// The size of each dimension.
    pub shape: Shape,
    /// The dtype.
    pub dtype: DType,
    /// The stride of each dimension, in elements.
    pub strides: Strides,
    /// The memory.
    pub aliasing: Aliasing,
    /// The expression whose values are the elements, if the operator evaluates one.
    pub(crate) evaluates: Option<Box<Evaluated>>,
    /// The leading dimensions along which each index is computed by itself: [`Form::rows`].
    pub(crate) rows: usize,
    /// The reduction along the last dimensions that it is: [`Form::reduces`].
    pub(crate) reduces: Option<ReduceParams>,
}

impl PartialEq for Inferred {
    fn eq(&self, other: &Inferred) -> bool {
        (&self.shape, self.dtype, &self.strides, self.aliasing)
            == (&other.shape, other.dtype, &other.strides, other.aliasing)
    }
}

impl Eq for Inferred {}

impl Inferred {
    /// Makes a contiguous result in new memory.
    pub fn fresh(shape: Shape, dtype: DType) -> Inferred {
        let strides = layout::contiguous_strides(&shape);
        let (aliasing, evaluates) = (Aliasing::Fresh, None);
        Inferred { shape, dtype, strides, aliasing, evaluates, rows: 0, reduces: None }
    }

    /// Makes a result that is the argument at that position.
    pub fn argument(number: usize, tensor: &Tensor) -> Inferred {
        Inferred::of_tensor(tensor, Aliasing::Argument(number))
    }

    /// Describes a tensor that a kernel returned for these arguments.
    pub fn of(result: &Tensor, args: &[ValueRef<'_>]) -> Inferred {
        let memory = result.buffer().identity();
        let has = |arg: &ValueRef<'_>| {
            arg.tensor().is_ok_and(|tensor| tensor.buffer().identity() == memory)
        };
        let aliasing = match args.iter().position(has) {
            Some(argument) => Aliasing::View { argument, offset: result.offset() },
            None => Aliasing::Fresh,
        };
        Inferred::of_tensor(result, aliasing)
    }

    /// Returns it in the terms of a pipeline.
    pub(crate) fn into_form(self) -> Form {
        let memory = match self.aliasing {
            Aliasing::Fresh => Memory::Fresh,
            Aliasing::View { .. } => Memory::Shared,
            Aliasing::Argument(number) => Memory::Argument(number),
        };
        let Inferred { shape, dtype, strides, evaluates, rows, reduces, .. } = self;
        Form { shape, dtype, strides, memory, evaluates, rows, reduces, work: None }
    }

    /// Describes the result of a planned call with these arguments.
    pub(crate) fn of_plan(plan: CallPlan<impl Run>, args: &[ValueRef<'_>]) -> Inferred {
        let (evaluates, rows) = (plan.run.evaluates(args), plan.run.rows());
        let reduces = plan.run.reduces();
        Inferred { evaluates, rows, reduces, ..Inferred::of_form(plan.form) }
    }

    pub(crate) fn of_form(form: TensorMeta) -> Inferred {
        Inferred::fresh(form.shape, form.dtype)
    }

    fn of_tensor(tensor: &Tensor, aliasing: Aliasing) -> Inferred {
        Inferred {
            shape: tensor.shape().clone(),
            dtype: tensor.dtype(),
            strides: tensor.strides().clone(),
            aliasing,
            evaluates: None,
            rows: 0,
            reduces: None,
        }
    }

    /// Compares the inferred properties with a kernel's result: the tensor, or the argument that it is.
    ///
    /// # Errors
    /// [`ErrorKind::Return`] with the operator and the first difference.
    pub fn check(&self, operator: &str, result: &Value, args: &[ValueRef<'_>]) -> Result<()> {
        let found = match (result, result.as_argument()) {
            (_, Some(number)) => Inferred::argument(number, args[number].tensor()?),
            (Value::Tensor(tensor), None) => Inferred::of(tensor, args),
            _ => return Ok(()),
        };
        let differences = [
            (found.shape != self.shape)
                .then(|| format!("shape {:?}, not {:?}", found.shape, self.shape)),
            (found.dtype != self.dtype)
                .then(|| format!("dtype {}, not {}", found.dtype, self.dtype)),
            (found.strides != self.strides)
                .then(|| format!("strides {:?}, not {:?}", found.strides, self.strides)),
            (found.aliasing != self.aliasing).then(|| {
                format!("{}, not {}", found.aliasing.describe(), self.aliasing.describe())
            }),
        ];
        let Some(difference) = differences.into_iter().flatten().next() else { return Ok(()) };
        let message = format!("{operator}: the result has {difference}, as the row infers it");
        Err(Error::new(ErrorKind::Return, message))
    }
}

/// Compares the inferred properties with all results of a kernel, as [`Inferred::check`] does for one.
///
/// # Errors
/// As [`Inferred::check`], and for another number of results.
pub(crate) fn check(
    inferred: &[Option<Inferred>],
    operator: &str,
    result: &Value,
    args: &[ValueRef<'_>],
) -> Result<()> {
    let several = match result {
        Value::List(items) | Value::Tuple(items) => items,
        one => std::slice::from_ref(one),
    };
    if several.len() != inferred.len() {
        let (found, expected) = (several.len(), inferred.len());
        let message =
            format!("{operator}: {found} results, not {expected}, as the row infers them");
        return Err(Error::new(ErrorKind::Return, message));
    }
    for (inferred, result) in inferred.iter().zip(several) {
        match (inferred, result) {
            (Some(inferred), result) => inferred.check(operator, result, args)?,
            (None, Value::None) => {}
            (None, _) => {
                let message =
                    format!("{operator}: a result is there that the row infers as not wanted");
                return Err(Error::new(ErrorKind::Return, message));
            }
        }
    }
    Ok(())
}

impl Aliasing {
    fn describe(self) -> String {
        match self {
            Aliasing::Fresh => "memory of its own".to_owned(),
            Aliasing::View { argument, offset } => {
                format!("the memory of argument {argument} from element {offset} on")
            }
            Aliasing::Argument(number) => format!("the memory of argument {number}, which it is"),
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use keyfold_core::Device;
    use keyfold_dispatch::{Dispatcher, Kernel, RegistrationKey};
    use keyfold_layers::autocast::Category;

    use super::*;
    use crate::naming::Naming;
    use crate::row::{Layers, Row, Rule};

    /// Calls an operator whose kernel transposes a 2 by 3 tensor, and whose row infers by `infer`.
    fn answer(infer: fn(&[ValueRef<'_>]) -> Result<Inferred>) -> Result<Tensor> {
        let none = Layers {
            derivative: Rule::Refused("a test"),
            tangent: Rule::Refused("a test"),
            batching: Rule::Refused("a test"),
            autocast: Category::Leave,
        };
        let row = Row::composite(
            "test::turn(Tensor(a) self) -> Tensor(a)",
            RegistrationKey::CompositeExplicitAutograd,
            || Kernel::typed(|x: &Tensor| x.transpose(0, 1)),
            infer,
            none,
            Naming::Unnamed("a test"),
        );
        let dispatcher = Dispatcher::<Value>::new();
        row?.define(&dispatcher)?;
        let x = Tensor::zeros(&[2, 3], DType::F32, Device::CPU)?;
        dispatcher.call("test::turn", &[ValueRef::Tensor(&x)])?.into_tensor()
    }

    fn infer_correctly(args: &[ValueRef<'_>]) -> Result<Inferred> {
        Ok(Inferred::of(&args[0].tensor()?.transpose(0, 1)?, args))
    }

    #[test]
    fn a_row_that_infers_wrongly_is_caught() {
        assert_eq!(**answer(infer_correctly).unwrap().shape(), [3, 2]);
        type Infer = fn(&[ValueRef<'_>]) -> Result<Inferred>;
        let wrong: [(Infer, &str); 5] = [
            (|args| Ok(Inferred::argument(0, args[0].tensor()?)), "shape [3, 2], not [2, 3]"),
            (
                |args| Ok(Inferred { dtype: DType::F64, ..infer_correctly(args)? }),
                "dtype float32, not float64",
            ),
            (
                |args| Ok(Inferred { strides: Strides::new(&[2, 1])?, ..infer_correctly(args)? }),
                "strides [1, 3], not [2, 1]",
            ),
            (
                |args| Ok(Inferred { aliasing: Aliasing::Fresh, ..infer_correctly(args)? }),
                "the memory of argument 0 from element 0 on, not memory of its own",
            ),
            (
                |args| {
                    let aliasing = Aliasing::View { argument: 0, offset: 1 };
                    Ok(Inferred { aliasing, ..infer_correctly(args)? })
                },
                "from element 0 on, not the memory of argument 0 from element 1 on",
            ),
        ];
        for (infer, difference) in wrong {
            let error = answer(infer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Return);
            assert!(error.message().contains("test::turn"), "{error}");
            assert!(error.message().contains(difference), "no {difference:?} in: {error}");
        }
    }
}
