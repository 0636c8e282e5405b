//! Fusion of pointwise operations: one program for a group of expressions that read each other's
//! results.
//!
//! Each member of a [`Group`] is lowered alone, for the dtypes that it would be called with, and its
//! result is rounded to its dtype, as storing it rounds. So a group's results equal those of its
//! members one by one, bit for bit. Equal steps are merged, also across members.
//!
//! [`grouping::groups`] chooses the groups of a record of operations.
//!
//! ```
//! use std::sync::Arc;
//!
//! use keyfold_core::DType;
//! use keyfold_expr::Expr;
//! use keyfold_expr::fuse::{Fusion, Group, GroupInput, Limits, Member, Source};
//!
//! // exp(x) * y, in float16: the exponential is rounded to float16 before the product.
//! let half = GroupInput { dtype: DType::F16, rank: None };
//! let exp = Member::new(Arc::new(Expr::parse("exp(x)")?), &[Source::Input(0)]);
//! let product = [Source::Member(0), Source::Input(1)];
//! let product = Member::new(Arc::new(Expr::parse("a * b")?), &product);
//! let inputs = vec![half.clone(), half];
//! let group = Group { inputs, params: vec![], members: vec![exp, product], results: vec![1] };
//! let Fusion::Program(fused) = group.fuse(&Limits::default())? else { unreachable!("it is small") };
//! assert_eq!(fused.program(0).steps().len(), 5);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod fused;
pub mod grouping;
mod merge;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use keyfold_core::{DType, DTypeKind, Error, ErrorKind, Result};
use smallvec::SmallVec;

use crate::Expr;

pub use fused::{Fused, Stored};

/// The operand of a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The group's input of this index.
    Input(u32),
    /// The result of the earlier member of this index.
    Member(u32),
}

/// A tensor that a group reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupInput {
    /// Its dtype.
    pub dtype: DType,
    /// `None` if it is read element by element, and broadcasts to the group's shape; else its number
    /// of dimensions, as [`Input::rank`](crate::Input::rank). A tensor that is read in both ways is
    /// two inputs.
    pub rank: Option<u32>,
}

/// One operation of a group. Its result has the group's shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    /// The expression that it computes.
    pub expr: Arc<Expr>,
    /// The operand of each input of the expression.
    pub sources: SmallVec<[Source; 3]>,
    /// For each parameter of the expression, the index of the group's parameter.
    pub params: SmallVec<[u32; 2]>,
    /// The dtype of its result, `None` for the default of [`Lowered::new`](crate::Lowered::new).
    pub out: Option<DType>,
}

impl Member {
    /// Returns a member without parameters whose result has the default dtype.
    pub fn new(expr: Arc<Expr>, sources: &[Source]) -> Member {
        Member { expr, sources: sources.into(), params: SmallVec::new(), out: None }
    }
}

/// Pointwise operations that are computed together, in one pass. It is the key under which a program
/// is cached: groups are compared in full.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Group {
    /// The tensors that it reads.
    pub inputs: Vec<GroupInput>,
    /// The kinds of the numbers that it is called with.
    pub params: Vec<DTypeKind>,
    /// The operations, each after those whose results it reads.
    pub members: Vec<Member>,
    /// The members whose results are stored.
    pub results: Vec<u32>,
}

/// The size of a group that a backend takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most steps.
    pub steps: usize,
    /// The most inputs.
    pub inputs: usize,
    /// The most parameters.
    pub params: usize,
    /// The most intermediate values that are alive at once: registers.
    pub live: usize,
    /// The most results. [`Group::fuse`] doesn't look at it, [`grouping::groups`] does.
    pub results: usize,
}

impl Default for Limits {
    /// Limits for the evaluator on the host: the registers of a block of 4096 bytes fit in half of an
    /// L2 cache of 256 KiB.
    fn default() -> Limits {
        Limits { steps: 512, inputs: 24, params: 64, live: 24, results: 8 }
    }
}

/// The limit that a group exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exceeded {
    /// [`Limits::steps`].
    Steps,
    /// [`Limits::inputs`].
    Inputs,
    /// [`Limits::params`].
    Params,
    /// [`Limits::live`].
    Live,
}

/// The outcome of [`Group::fuse`].
#[derive(Clone, PartialEq, Debug)]
pub enum Fusion {
    /// The program of the group.
    Program(Fused),
    /// The group is too large.
    Cut {
        /// The number of members at the beginning that are within the limits, if the others are left
        /// out; 0 if the first member alone isn't.
        members: usize,
        /// The limit that the next one exceeds.
        exceeded: Exceeded,
    },
}

impl Group {
    /// Returns the program of the group.
    ///
    /// # Errors
    /// As [`Lowered::new`](crate::Lowered::new) of a member, and [`ErrorKind::Binding`] for a source, a parameter or a result
    /// that doesn't exist, for a member's result that is read at computed indices, and for no results.
    pub fn fuse(&self, limits: &Limits) -> Result<Fusion> {
        self.check()?;
        merge::merge(self, limits)
    }

    /// Checks the indices of sources, parameters and results.
    fn check(&self) -> Result<()> {
        if self.results.is_empty() {
            return Err(Error::new(ErrorKind::Binding, "a group of operations has no result"));
        }
        if let Some(wrong) = self.results.iter().find(|at| **at as usize >= self.members.len()) {
            return Err(Error::new(
                ErrorKind::Binding,
                format!("the result of member {wrong} of {} is stored", self.members.len()),
            ));
        }
        for (at, member) in self.members.iter().enumerate() {
            self.check_member(at, member).map_err(|message| {
                Error::new(ErrorKind::Binding, format!("member {at} of a group {message}"))
            })?;
        }
        Ok(())
    }

    fn check_member(&self, at: usize, member: &Member) -> Result<(), String> {
        let wanted = member.expr.inputs();
        if member.sources.len() != wanted.len() {
            return Err(format!("has {} inputs, not {}", wanted.len(), member.sources.len()));
        }
        for (source, wanted) in member.sources.iter().zip(wanted) {
            let rank = match *source {
                Source::Input(input) => match self.inputs.get(input as usize) {
                    Some(input) => input.rank,
                    None => return Err(format!("reads input {input} of {}", self.inputs.len())),
                },
                Source::Member(earlier) if (earlier as usize) < at => None,
                Source::Member(later) => {
                    return Err(format!("reads the result of member {later}, which isn't earlier"));
                }
            };
            if rank != wanted.rank {
                return Err(format!(
                    "reads '{}' as an input of rank {:?}, but its source {source:?} has {rank:?}",
                    wanted.name, wanted.rank
                ));
            }
        }
        let params = member.expr.params().len();
        if member.params.len() != params {
            return Err(format!("has {params} parameters, not {}", member.params.len()));
        }
        match member.params.iter().find(|param| **param as usize >= self.params.len()) {
            Some(wrong) => Err(format!("has parameter {wrong} of {}", self.params.len())),
            None => Ok(()),
        }
    }
}
