//! The table: an instance for each covered point.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use super::body::Instantiate;
use super::coords::Origin;
use super::error_text;
use super::space::{Axes, AxisList, Coverage, Query, Space, Within};
use super::type_list::{Subsets, Subspace};

/// A table of kernels over the axes `S`, a tuple such as `(Device, Dtype, Contiguity)`.
///
/// Each covered point has an instance of type `F`, usually a function pointer. Selecting an instance and
/// calling it are two steps; selecting is an array index. [`builder`](Self::builder) starts a table.
#[derive(Clone)]
pub struct DispatchTable<S, F> {
    name: Arc<str>,
    slots: Box<[Option<F>]>,
    /// For each point, the index in `bodies` of the body that made its instance.
    owners: Box<[u16]>,
    bodies: Vec<BodyRecord>,
    space: std::marker::PhantomData<fn() -> S>,
}

/// The record of a body on a sub-space, for messages and for the choice between several bodies.
#[derive(Clone, PartialEq, Eq)]
struct BodyRecord {
    name: String,
    kind: TypeId,
    /// The number of axes fixed to one value, and of axes restricted to several values but not all.
    fixed_axes: (usize, usize),
}

impl<S: Axes, F: Clone + 'static> DispatchTable<S, F> {
    /// A builder of an empty table; messages call the table `name`.
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

    /// The table's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the instance at a point, whose coordinates come in any order.
    ///
    /// # Errors
    /// [`ErrorKind::MissingKernel`], with the table, the coordinates and the nearest covered points.
    #[inline]
    pub fn select(&self, point: impl Query<S>) -> Result<&F> {
        let index = point.index();
        match &self.slots[index] {
            Some(instance) => Ok(instance),
            None => Err(self.uncovered(index)),
        }
    }

    /// Returns the instance at a point, or `None` if the point isn't covered.
    #[inline]
    pub fn try_select(&self, point: impl Query<S>) -> Option<&F> {
        self.slots[point.index()].as_ref()
    }

    /// Returns the instance at a point that is known at compile time, such as the coordinates of another
    /// body; coordinates on other axes than the table's are ignored.
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
            error_text::uncovered(&self.name, S::point(index), &self.coverage()),
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

    /// The number of points that have an instance.
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

    /// The name of the body whose instance is at a point, or `None` if the point isn't covered.
    pub fn body_name(&self, point: impl Query<S>) -> Option<&str> {
        let index = point.index();
        self.slots[index].as_ref()?;
        Some(&self.bodies[usize::from(self.owners[index])].name)
    }

    /// Returns a copy of the table with one more body; this table doesn't change.
    ///
    /// # Errors
    /// As [`TableBuilder::build`].
    pub fn with<P: Subspace, B: 'static>(&self, subspace: P, body: B) -> Result<Self>
    where
        S::List: Instantiate<P::List, B, F, Origin>,
    {
        self.to_builder().cover(subspace, body).build()
    }

    /// Returns a builder with this table's entries.
    pub fn to_builder(&self) -> TableBuilder<S, F> {
        let entries = self.slots.iter().zip(&self.owners).enumerate();
        TableBuilder {
            name: self.name.clone(),
            entries: entries
                .filter_map(|(index, (slot, &body))| {
                    slot.clone().map(|instance| Candidate { index, body, instance })
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

/// A candidate instance at a point; a more specific body's candidate replaces it.
struct Candidate<F> {
    index: usize,
    body: u16,
    instance: F,
}

/// A table under construction: sub-spaces and the bodies that cover them.
#[must_use = "call `build`"]
pub struct TableBuilder<S, F> {
    name: Arc<str>,
    entries: Vec<Candidate<F>>,
    bodies: Vec<BodyRecord>,
    problem: Option<Error>,
    space: std::marker::PhantomData<fn() -> S>,
}

impl<S: Axes, F: Clone + 'static> TableBuilder<S, F> {
    /// Covers a sub-space, a tuple of subsets in any order such as `(Cpu, FLOATS)`, by a body; an axis
    /// without a subset has all its values. Only the sub-space's points are instantiated.
    ///
    /// If several bodies cover a point, the most specific wins: the body that fixes more axes to one
    /// value, and among equals the one that restricts more axes to some of their values.
    pub fn cover<P: Subspace, B: 'static>(mut self, subspace: P, body: B) -> Self
    where
        S::List: Instantiate<P::List, B, F, Origin>,
    {
        let _ = subspace;
        let at = self.bodies.len();
        let Ok(number) = u16::try_from(at) else {
            self.record_error(format!("{}: more than {} bodies", self.name, u16::MAX));
            return self;
        };
        let mut called = None;
        let entries = &mut self.entries;
        <S::List as Instantiate<P::List, B, F, Origin>>::instantiate(
            &body,
            0,
            &mut |index, instance, name| {
                called.get_or_insert_with(name);
                entries.push(Candidate { index, body: number, instance });
            },
        );
        self.bodies.push(BodyRecord {
            name: called.unwrap_or_default(),
            kind: TypeId::of::<B>(),
            fixed_axes: <S::List as AxisList>::fixed_axes::<P::List>(),
        });
        self.check::<P>(at);
        self
    }

    /// Records an error for axes that the table lacks or that the sub-space names twice.
    fn check<P: Subspace>(&mut self, body: usize) {
        let mut names = Vec::new();
        P::List::for_each_name(&mut |name| names.push(name));
        let problem = misnamed((&self.name, S::NAMES), &names, &self.bodies[body].name);
        if let Some(problem) = problem {
            self.record_error(problem);
        }
    }

    /// Records the first error, which [`build`](Self::build) returns.
    fn record_error(&mut self, problem: String) {
        self.problem.get_or_insert_with(|| Error::new(ErrorKind::Registration, problem));
    }

    /// Builds the table.
    ///
    /// # Errors
    /// [`ErrorKind::Registration`] if two bodies cover a point equally well, with both names and the
    /// point, and for a sub-space over axes that the table lacks.
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
        for Candidate { index, body, instance } in self.entries {
            let (new, old) = (usize::from(body), usize::from(owners[index]));
            let (new, old) = (&self.bodies[new], &self.bodies[old]);
            let wins = slots[index].is_none() || new.fixed_axes > old.fixed_axes;
            if wins {
                slots[index] = Some(instance);
                owners[index] = body;
                ties[index] = None;
            } else if new.fixed_axes == old.fixed_axes
                && (&new.name, new.kind) != (&old.name, old.kind)
            {
                ties[index] = Some(body);
            }
        }
        if let Some((index, body)) =
            ties.iter().enumerate().find_map(|(index, tie)| tie.map(|body| (index, body)))
        {
            let count = ties.iter().flatten().count();
            return Err(Error::new(
                ErrorKind::Registration,
                error_text::tie(
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

/// Says which of a sub-space's axes the table of that name and those axes lacks, or which is named twice:
/// compiled once, not for each body.
fn misnamed((table, axes): (&str, &[&str]), names: &[&str], body: &str) -> Option<String> {
    names.iter().enumerate().find_map(|(at, name)| {
        let why = if !axes.contains(name) {
            format!("which isn't one of its axes ({})", axes.join(", "))
        } else if names[..at].contains(name) {
            "twice".to_owned()
        } else {
            return None;
        };
        Some(format!("{table}: the sub-space of the body {body} names the axis {name}, {why}"))
    })
}
