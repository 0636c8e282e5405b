//! More arguments than one tuple holds.

use std::marker::PhantomData;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Argument;
use keyfold_dispatch::{Args, Misfit, Ret};
use keyfold_tensor::{Value, ValueRef};

/// The arguments of a tuple of `FIRST` ones, and those of another tuple behind them.
pub(super) struct Many<const FIRST: usize, A, B>(PhantomData<fn() -> (A, B)>);

impl<const FIRST: usize, A: Args<Value>, B: Args<Value>> Args<Value> for Many<FIRST, A, B> {
    type Of<'a> = (A::Of<'a>, B::Of<'a>);

    fn unbox<'a>(args: &[ValueRef<'a>]) -> Result<Self::Of<'a>>
    where
        'a: 'a,
    {
        let Some((first, rest)) = args.split_at_checked(FIRST) else {
            let message = format!("{} arguments are too few", args.len());
            return Err(Error::new(ErrorKind::Binding, message));
        };
        Ok((A::unbox(first)?, B::unbox(rest)?))
    }

    fn entry<R: Ret<Value>, F>() -> *const ()
    where
        F: for<'a> Fn(Self::Of<'a>) -> Result<R>,
    {
        // Handles with unboxed calls exist for tuples only, so nothing calls the entry.
        fn boxed_only() {}
        boxed_only as *const ()
    }

    fn check(arguments: &[Argument]) -> Result<(), Misfit> {
        let Some((first, rest)) = arguments.split_at_checked(FIRST) else {
            return Err(Misfit::Arity(FIRST));
        };
        A::check(first)?;
        B::check(rest)
    }
}
