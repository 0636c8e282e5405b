//! The table: an instance per covered point.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use super::body::Instantiate;
use super::coords::Origin;
use super::explain;
use super::list::{Subsets, Subspace};
use super::space::{Axes, AxisList, Coverage, Query, Space, Within};

/// A table of kernels over the axes `S`, a tuple such as `(Device, Dtype, Contiguity)`.
///
/// Each covered point has an instance of type `F`, mostly a function pointer. Choosing one and
/// calling it are two steps; choosing is an array index. [`builder`](Self::builder) starts a table.
#[derive(Clone)]
pub struct DispatchTable<S, F> {
    name: Arc<str>,
    slots: Box<[Option<F>]>,
    /// Which of `bodies` made each instance.
    owners: Box<[u16]>,
    bodies: Vec<BodyInfo>,
    space: std::marker::PhantomData<fn() -> S>,
}

/// A body on a sub-space, as messages and the choice between several need it.
#[derive(Clone, PartialEq, Eq)]
struct BodyInfo {
    name: String,
    kind: TypeId,
    /// Axes fixed to one value, and axes with a choice that isn't the whole one.
    pins: (usize, usize),
}

impl<S: Axes, F: Clone + 'static> DispatchTable<S, F> {
    /// An empty table to be filled; messages call it `name`.
    pub fn builder(name: &str) -> TableBuilder<S, F> {
        const {
            assert!(Space::<S>::COUNT <= 1 << 24, "a table of more than 2^24 points");
        }
        TableBuilder {
            name: name.into(),
            entries: Vec::new(),
            bodies: Vec::new(),
            problem: None,
            space: std::marker::PhantomData,
        }
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The instance at a point; its coordinates in any order.
    ///
    /// # Errors
    /// [`ErrorKind::MissingKernel`] that names the table, the coordinates and the nearest covered
    /// points.
    #[inline]
    pub fn select(&self, point: impl Query<S>) -> Result<&F> {
        let index = point.index();
        match &self.slots[index] {
            Some(instance) => Ok(instance),
            None => Err(self.uncovered(index)),
        }
    }

    /// The instance at a point, if it is covered.
    #[inline]
    pub fn try_select(&self, point: impl Query<S>) -> Option<&F> {
        self.slots[point.index()].as_ref()
    }

    /// The instance at a point that is known at compile time: the coordinates of another body, say.
    /// What else they have beside the table's axes doesn't matter.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    #[inline]
    pub fn select_at<C: Within<S::List>>(&self, coords: C) -> Result<&F> {
        let _ = coords;
        match &self.slots[<C as Within<S::List>>::INDEX] {
            Some(instance) => Ok(instance),
            None => Err(self.uncovered(<C as Within<S::List>>::INDEX)),
        }
    }

    #[cold]
    fn uncovered(&self, index: usize) -> Error {
        Error::new(
            ErrorKind::MissingKernel,
            explain::uncovered(&self.name, S::point(index), &self.coverage()),
        )
    }

    /// The points that have an instance.
    pub fn coverage(&self) -> Coverage<S> {
        let mut coverage = Coverage::new();
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.is_some() {
                coverage.insert(index);
            }
        }
        coverage
    }

    /// How many points have an instance.
    pub fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// The instances with their points.
    pub fn iter(&self) -> impl Iterator<Item = (S, &F)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| slot.as_ref().map(|instance| (S::point(index), instance)))
    }

    /// The name of the body whose instance is at a point.
    pub fn body_name(&self, point: impl Query<S>) -> Option<&str> {
        let index = point.index();
        self.slots[index].as_ref()?;
        Some(&self.bodies[usize::from(self.owners[index])].name)
    }

    /// A copy with more entries; this table stays as it is.
    ///
    /// # Errors
    /// As [`TableBuilder::build`].
    pub fn with<P: Subspace, B: 'static>(&self, subspace: P, body: B) -> Result<Self>
    where
        S::List: Instantiate<P::List, B, F, Origin>,
    {
        self.to_builder().cover(subspace, body).build()
    }

    /// A builder that has this table's entries already.
    pub fn to_builder(&self) -> TableBuilder<S, F> {
        let entries = self.slots.iter().zip(&self.owners).enumerate();
        TableBuilder {
            name: self.name.clone(),
            entries: entries
                .filter_map(|(index, (slot, &body))| {
                    slot.clone().map(|instance| Entry { index, body, instance })
                })
                .collect(),
            bodies: self.bodies.clone(),
            problem: None,
            space: self.space,
        }
    }
}

impl<S: Axes, F: Clone + 'static> fmt::Debug for DispatchTable<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bodies: Vec<_> = self.bodies.iter().map(|body| &body.name).collect();
        f.debug_struct("DispatchTable")
            .field("name", &self.name)
            .field("axes", &S::NAMES)
            .field("points", &Space::<S>::COUNT)
            .field("covered", &self.count())
            .field("bodies", &bodies)
            .finish()
    }
}

/// An instance at a point, of a body that may lose it to another one.
struct Entry<F> {
    index: usize,
    body: u16,
    instance: F,
}

/// A table that is being filled: sub-spaces and the bodies that cover them.
#[must_use = "call `build`"]
pub struct TableBuilder<S, F> {
    name: Arc<str>,
    entries: Vec<Entry<F>>,
    bodies: Vec<BodyInfo>,
    problem: Option<Error>,
    space: std::marker::PhantomData<fn() -> S>,
}

impl<S: Axes, F: Clone + 'static> TableBuilder<S, F> {
    /// Covers a sub-space, a tuple of subsets in any order such as `(Cpu, FLOATS)`, by a body; an
    /// axis that isn't named has all its values. Only these points are instantiated.
    ///
    /// Where several bodies cover a point, the one that fixes more axes to one value wins; of those
    /// that fix as many, the one that leaves less than the whole choice on more axes.
    pub fn cover<P: Subspace, B: 'static>(mut self, subspace: P, body: B) -> Self
    where
        S::List: Instantiate<P::List, B, F, Origin>,
    {
        let _ = subspace;
        let at = self.bodies.len();
        let Ok(number) = u16::try_from(at) else {
            self.refuse(format!("{}: more than {} bodies", self.name, u16::MAX));
            return self;
        };
        let mut called = None;
        let entries = &mut self.entries;
        <S::List as Instantiate<P::List, B, F, Origin>>::instantiate(
            &body,
            0,
            &mut |index, instance, name| {
                called.get_or_insert_with(name);
                entries.push(Entry { index, body: number, instance });
            },
        );
        self.bodies.push(BodyInfo {
            name: called.unwrap_or_default(),
            kind: TypeId::of::<B>(),
            pins: <S::List as AxisList>::pins::<P::List>(),
        });
        self.check::<P>(at);
        self
    }

    /// Axes that the table hasn't, or that are named twice.
    fn check<P: Subspace>(&mut self, body: usize) {
        let mut seen = Vec::new();
        let mut problem = None;
        P::List::for_each_name(&mut |name| {
            let why = if !S::NAMES.contains(&name) {
                format!("which isn't one of its axes ({})", S::NAMES.join(", "))
            } else if seen.contains(&name) {
                "twice".to_owned()
            } else {
                return seen.push(name);
            };
            problem = Some(format!(
                "{}: the sub-space of the body {} names the axis {name}, {why}",
                self.name, self.bodies[body].name
            ));
        });
        if let Some(problem) = problem {
            self.refuse(problem);
        }
    }

    /// Keeps the first problem: [`build`](Self::build) reports it.
    fn refuse(&mut self, problem: String) {
        self.problem.get_or_insert_with(|| Error::new(ErrorKind::Registration, problem));
    }

    /// The table.
    ///
    /// # Errors
    /// [`ErrorKind::Registration`] where two bodies cover a point equally well, naming both and the
    /// point, and for a sub-space over axes that the table hasn't.
    pub fn build(self) -> Result<DispatchTable<S, F>> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        for (i, name) in S::NAMES.iter().enumerate() {
            if S::NAMES[..i].contains(name) {
                return Err(Error::new(
                    ErrorKind::Registration,
                    format!("{}: the table has two axes of the name {name}", self.name),
                ));
            }
        }
        let mut slots: Vec<Option<F>> = vec![None; Space::<S>::COUNT];
        let mut owners = vec![0_u16; slots.len()];
        let mut ties: Vec<Option<u16>> = vec![None; slots.len()];
        for Entry { index, body, instance } in self.entries {
            let (new, old) = (usize::from(body), usize::from(owners[index]));
            let (new, old) = (&self.bodies[new], &self.bodies[old]);
            let wins = slots[index].is_none() || new.pins > old.pins;
            if wins {
                slots[index] = Some(instance);
                owners[index] = body;
                ties[index] = None;
            } else if new.pins == old.pins && (&new.name, new.kind) != (&old.name, old.kind) {
                ties[index] = Some(body);
            }
        }
        if let Some((index, body)) =
            ties.iter().enumerate().find_map(|(index, tie)| tie.map(|body| (index, body)))
        {
            let count = ties.iter().flatten().count();
            return Err(Error::new(
                ErrorKind::Registration,
                explain::tie(
                    &self.name,
                    S::point(index),
                    [
                        &self.bodies[usize::from(owners[index])].name,
                        &self.bodies[usize::from(body)].name,
                    ],
                    count,
                ),
            ));
        }
        Ok(DispatchTable {
            name: self.name,
            slots: slots.into(),
            owners: owners.into(),
            bodies: self.bodies,
            space: self.space,
        })
    }
}
