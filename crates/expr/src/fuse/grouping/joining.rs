//! Operations join the groups of those whose results they read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::dependencies::Dependencies;
use super::{Limits, Pointwise, Read, Record, Source, Unit, Wiring};

/// Groups under construction. A group has the number of its first operation.
pub(super) struct Joining<'a> {
    record: &'a Record<'a>,
    dependencies: &'a Dependencies,
    limits: &'a Limits,
    /// The group of each operation.
    group: Vec<usize>,
    /// The operations of each group, ascending; empty for numbers that aren't a group's.
    ops: Vec<Vec<usize>>,
    /// For each index, the last operation of all groups that begin there or before.
    ends: Vec<usize>,
}

impl<'a> Joining<'a> {
    pub(super) fn new(
        record: &'a Record<'a>,
        dependencies: &'a Dependencies,
        limits: &'a Limits,
    ) -> Joining<'a> {
        let count = record.ops.len();
        let (group, ends) = ((0..count).collect(), (0..count).collect());
        let ops = (0..count).map(|op| vec![op]).collect();
        Joining { record, dependencies, limits, group, ops, ends }
    }

    /// Joins an operation with the groups of all its producers, or else with those of single ones.
    pub(super) fn join(&mut self, op: usize) {
        let Some(own) = self.member(op) else { return };
        let mut groups: SmallVec<[usize; 4]> = SmallVec::new();
        for producer in self.dependencies.producers[op].iter().flatten() {
            let fits = self.member(*producer).is_some_and(|producer| {
                producer.shape == own.shape && producer.device == own.device
            });
            if fits && !groups.contains(&self.group[*producer]) {
                groups.push(self.group[*producer]);
            }
        }
        if groups.is_empty() || self.unite(op, &groups) || groups.len() == 1 {
            return;
        }
        // The latest one first: its result is the most likely to have no other reader.
        groups.sort_by_key(|group| Reverse(self.ops[*group].last().copied()));
        for group in groups {
            self.unite(self.group[op], &[group]);
        }
    }

    /// Returns an operation that can be in a group with others.
    fn member(&self, op: usize) -> Option<Pointwise> {
        self.record.ops[op].pointwise.filter(|_| !self.dependencies.rearranges[op])
    }

    /// Makes one group of several, if that is allowed.
    fn unite(&mut self, one: usize, others: &[usize]) -> bool {
        let mut groups: SmallVec<[usize; 4]> = others.into();
        groups.push(one);
        let mut ops: Vec<usize> =
            groups.iter().flat_map(|group| self.ops[*group].clone()).collect();
        ops.sort_unstable();
        if !self.is_group(&ops) || self.is_between(&groups, ops[0]) {
            return false;
        }
        let (first, last) = (ops[0], ops[ops.len() - 1]);
        for group in groups {
            self.ops[group].clear();
        }
        ops.iter().for_each(|op| self.group[*op] = first);
        self.ops[first] = ops;
        for end in &mut self.ends[first..last] {
            *end = (*end).max(last);
        }
        true
    }

    /// Whether the members need no more of each other than elements, and are within the limits.
    fn is_group(&self, ops: &[usize]) -> bool {
        let within = |op: usize| ops.binary_search(&op).is_ok();
        let by_element = ops
            .iter()
            .all(|op| self.dependencies.of[*op].iter().all(|on| on.by_element || !within(on.op)));
        let sum = |of: fn(&Pointwise) -> u32| -> usize {
            let all = ops.iter().filter_map(|op| self.record.ops[*op].pointwise.as_ref());
            all.map(|op| of(op) as usize).sum()
        };
        if !by_element
            || sum(|op| op.nodes) > self.limits.steps
            || sum(|op| op.params) > self.limits.params
        {
            return false;
        }
        let wiring = self.wiring(ops);
        wiring.inputs.len() <= self.limits.inputs && wiring.results.len() <= self.limits.results
    }

    /// Whether an operation that isn't in these groups has to run after a part of them and before
    /// another part. `first` is the groups' first operation.
    fn is_between(&self, groups: &[usize], first: usize) -> bool {
        let before = |group: usize| {
            let ops = self.ops[group].iter();
            ops.flat_map(|op| &self.dependencies.of[*op]).map(|on| self.group[on.op])
        };
        let mut seen = vec![false; self.group.len()];
        groups.iter().for_each(|group| seen[*group] = true);
        let mut waiting: Vec<usize> = groups.iter().flat_map(|group| before(*group)).collect();
        while let Some(group) = waiting.pop() {
            if std::mem::replace(&mut seen[group], true) || self.reach(group) < first {
                continue;
            }
            if before(group).any(|other| groups.contains(&other)) {
                return true;
            }
            waiting.extend(before(group));
        }
        false
    }

    /// Returns an index beyond which a group depends on nothing.
    fn reach(&self, group: usize) -> usize {
        let mut reach = *self.ops[group].last().unwrap_or(&group);
        while self.ends[reach] > reach {
            reach = self.ends[reach];
        }
        reach
    }

    /// Connects the members of a group.
    fn wiring(&self, ops: &[usize]) -> Wiring {
        let mut wiring = Wiring::default();
        for (member, op) in ops.iter().enumerate() {
            let (recorded, producers) = (&self.record.ops[*op], &self.dependencies.producers[*op]);
            let reads = recorded.reads.iter().zip(producers);
            let sources = reads.map(|(read, producer)| {
                match producer.and_then(|producer| ops.binary_search(&producer).ok()) {
                    Some(earlier) if !read.ranked => Source::Member(earlier as u32),
                    _ => Source::Input(number(&mut wiring.inputs, *read)),
                }
            });
            let sources = sources.collect();
            wiring.sources.push(sources);
            let outside = |reader: &usize| ops.binary_search(reader).is_err();
            let memory = self.record.memory[recorded.writes[0] as usize];
            let lasts = self.record.held[memory as usize] && !self.dependencies.overwritten[*op];
            if lasts || self.dependencies.readers[*op].iter().any(outside) {
                wiring.results.push(member as u32);
            }
        }
        wiring
    }

    /// Returns the units, each after those that it waits for, otherwise in the order of their first
    /// operations.
    pub(super) fn finish(self) -> Vec<Unit> {
        let count = self.group.len();
        let mut waits: Vec<Vec<usize>> = vec![Vec::new(); count];
        let mut followers: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (op, group) in self.group.iter().enumerate() {
            for on in &self.dependencies.of[op] {
                let other = self.group[on.op];
                if other != *group && !waits[*group].contains(&other) {
                    waits[*group].push(other);
                    followers[other].push(*group);
                }
            }
        }
        let mut missing: Vec<usize> = waits.iter().map(Vec::len).collect();
        let ready = (0..count).filter(|group| !self.ops[*group].is_empty() && missing[*group] == 0);
        let mut ready: BinaryHeap<Reverse<usize>> = ready.map(Reverse).collect();
        let mut place = vec![0; count];
        let mut units = Vec::new();
        while let Some(Reverse(group)) = ready.pop() {
            place[group] = units.len();
            let ops = self.ops[group].clone();
            let is_group = self.record.ops[ops[0]].pointwise.is_some();
            let group_wiring = is_group.then(|| self.wiring(&ops));
            let mut after: Vec<usize> = waits[group].iter().map(|other| place[*other]).collect();
            after.sort_unstable();
            units.push(Unit { ops, after, group: group_wiring });
            for follower in &followers[group] {
                missing[*follower] -= 1;
                if missing[*follower] == 0 {
                    ready.push(Reverse(*follower));
                }
            }
        }
        units
    }
}

/// Returns the number of an input, which is added if it isn't there.
fn number(inputs: &mut Vec<Read>, read: Read) -> u32 {
    let known = inputs.iter().position(|input| *input == read);
    let at = known.unwrap_or_else(|| {
        inputs.push(read);
        inputs.len() - 1
    });
    at as u32
}
