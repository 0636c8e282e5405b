//! The arguments of `convolution` and `convolution_backward`, which are more than tuples of arguments have.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Argument;
use keyfold_dispatch::{Arg, Args, Misfit, Ret};
use keyfold_tensor::{IntList, Tensor, Value, ValueRef};

/// How a convolution's window moves, and how channels are grouped.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) stride: IntList,
    pub(super) padding: IntList,
    pub(super) dilation: IntList,
    pub(super) transposed: bool,
    pub(super) output_padding: IntList,
    pub(super) groups: i64,
}

impl Settings {
    /// The number of arguments.
    const COUNT: usize = 6;

    /// Reads them from their values.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] where these are others.
    pub(super) fn of_values(args: &[ValueRef<'_>]) -> Result<Settings> {
        count(args, Settings::COUNT)?;
        Ok(Settings {
            stride: IntList::unbox(args[0])?,
            padding: IntList::unbox(args[1])?,
            dilation: IntList::unbox(args[2])?,
            transposed: bool::unbox(args[3])?,
            output_padding: IntList::unbox(args[4])?,
            groups: i64::unbox(args[5])?,
        })
    }

    /// Returns them as arguments of a call.
    pub(super) fn values(&self) -> [ValueRef<'_>; Settings::COUNT] {
        [
            ValueRef::Ints(&self.stride),
            ValueRef::Ints(&self.padding),
            ValueRef::Ints(&self.dilation),
            self.transposed.into(),
            ValueRef::Ints(&self.output_padding),
            self.groups.into(),
        ]
    }

    /// Reads them from the arguments of a call of `convolution_activation`.
    ///
    /// # Errors
    /// As [`Settings::of_values`].
    pub(super) fn of_activated(args: &[ValueRef<'_>]) -> Result<Settings> {
        let no_padding = ValueRef::Ints(&[0]);
        let [_, _, _, stride, padding, dilation, groups, _] = *args else {
            return Err(wrong_count(args.len(), ACTIVATION + 1));
        };
        Settings::of_values(&[stride, padding, dilation, false.into(), no_padding, groups])
    }

    /// Reads them from the arguments of a call of `convolution`, of which they are the last ones.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] where they are other arguments.
    pub(super) fn of_call(args: &[ValueRef<'_>]) -> Result<Settings> {
        Settings::of_values(&args[CONVOLUTION - Settings::COUNT..CONVOLUTION])
    }

    /// As [`Settings::of_call`], of a call of `convolution_backward`.
    ///
    /// # Errors
    /// As [`Settings::of_call`].
    pub(super) fn of_backward(args: &[ValueRef<'_>]) -> Result<Settings> {
        Settings::of_values(&args[BACKWARD - Settings::COUNT - 1..BACKWARD - 1])
    }
}

/// The position of the activation among the arguments of `convolution_activation`, of which it is the last.
pub(super) const ACTIVATION: usize = 7;

/// The numbers of arguments.
const CONVOLUTION: usize = 9;
const BACKWARD: usize = 11;

/// The arguments of `convolution`, as a type.
pub(super) struct OfConvolution;

/// The arguments of a call of `convolution`.
pub(super) struct Given<'a> {
    pub(super) input: &'a Tensor,
    pub(super) weight: &'a Tensor,
    pub(super) bias: Option<&'a Tensor>,
    pub(super) settings: Settings,
}

impl Args<Value> for OfConvolution {
    type Of<'a> = Given<'a>;

    fn unbox<'a>(args: &[ValueRef<'a>]) -> Result<Given<'a>>
    where
        'a: 'a,
    {
        count(args, CONVOLUTION)?;
        Ok(Given {
            input: args[0].tensor()?,
            weight: args[1].tensor()?,
            bias: <Option<&'static Tensor>>::unbox(args[2])?,
            settings: Settings::of_call(args)?,
        })
    }

    fn entry<R: Ret<Value>, F>() -> *const ()
    where
        F: for<'a> Fn(Given<'a>) -> Result<R>,
    {
        boxed_only as *const ()
    }

    fn check(arguments: &[Argument]) -> Result<(), Misfit> {
        fits(arguments, CONVOLUTION)
    }
}

/// The arguments of `convolution_backward`, as a type.
pub(super) struct OfBackward;

/// The arguments of a call of `convolution_backward`.
pub(super) struct GivenBackward<'a> {
    pub(super) gradient: &'a Tensor,
    pub(super) input: &'a Tensor,
    pub(super) weight: &'a Tensor,
    pub(super) settings: Settings,
    /// Whether the gradients of input, weight and bias are wanted.
    pub(super) wanted: [bool; 3],
}

impl Args<Value> for OfBackward {
    type Of<'a> = GivenBackward<'a>;

    fn unbox<'a>(args: &[ValueRef<'a>]) -> Result<GivenBackward<'a>>
    where
        'a: 'a,
    {
        count(args, BACKWARD)?;
        Ok(GivenBackward {
            gradient: args[0].tensor()?,
            input: args[1].tensor()?,
            weight: args[2].tensor()?,
            settings: Settings::of_backward(args)?,
            wanted: wanted(args)?,
        })
    }

    fn entry<R: Ret<Value>, F>() -> *const ()
    where
        F: for<'a> Fn(GivenBackward<'a>) -> Result<R>,
    {
        boxed_only as *const ()
    }

    fn check(arguments: &[Argument]) -> Result<(), Misfit> {
        fits(arguments, BACKWARD)
    }
}

/// The unboxed entry of a kernel with these arguments: handles with unboxed calls exist for tuples only, so
/// nothing calls it.
fn boxed_only() {}

/// Reads the last argument of `convolution_backward`.
///
/// # Errors
/// [`ErrorKind::Binding`] for anything but three bools.
pub(super) fn wanted(args: &[ValueRef<'_>]) -> Result<[bool; 3]> {
    wanted_of(args[BACKWARD - 1])
}

/// As [`wanted`], of that argument alone.
///
/// # Errors
/// As [`wanted`].
pub(super) fn wanted_of(mask: ValueRef<'_>) -> Result<[bool; 3]> {
    let mask: Vec<bool> = mask.items().map(bool::unbox).collect::<Result<_>>()?;
    <[bool; 3]>::try_from(mask).map_err(|mask| {
        let message = format!(
            "argument 'output_mask' has {} bools; it has one for each of the gradients of input, \
             weight and bias",
            mask.len()
        );
        Error::new(ErrorKind::Binding, message)
    })
}

fn count(args: &[ValueRef<'_>], expected: usize) -> Result<()> {
    if args.len() == expected {
        return Ok(());
    }
    Err(wrong_count(args.len(), expected))
}

#[cold]
fn wrong_count(given: usize, expected: usize) -> Error {
    let message = format!("a kernel of {expected} arguments was called with {given}");
    Error::new(ErrorKind::Binding, message)
}

fn fits(arguments: &[Argument], expected: usize) -> Result<(), Misfit> {
    if arguments.len() == expected { Ok(()) } else { Err(Misfit::Arity(expected)) }
}
