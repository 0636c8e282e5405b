//! Renumbering of values, and removal of unused calls and constants.

use std::collections::HashSet;

use super::ir::{Arg, Argument, Constant, Graph, Input, Node, ValueId};

impl Graph {
    /// Returns the graph without calls whose results aren't used. Calls that write in place, return
    /// nothing or draw random numbers stay, and so do the inputs.
    ///
    /// A call's effects are those of its schema: a kernel with other effects (printing, for
    /// example) may be removed.
    #[must_use]
    pub fn simplified(&self) -> Graph {
        let mut needed: HashSet<ValueId> = self.outputs.iter().flat_map(Arg::values).collect();
        let mut nodes: Vec<&Node> = Vec::with_capacity(self.nodes.len());
        for node in self.nodes.iter().rev() {
            if node.effects || node.makes().iter().any(|id| needed.contains(id)) {
                needed.extend(node.reads());
                nodes.push(node);
            }
        }
        let nodes = nodes.into_iter().rev().cloned().collect();
        Graph { nodes, ..self.clone() }.numbered()
    }

    /// Returns the graph with its values in the order inputs, constants, results, and without
    /// unused constants.
    #[must_use]
    pub(super) fn numbered(self) -> Graph {
        let mut used: HashSet<ValueId> = self.outputs.iter().flat_map(Arg::values).collect();
        used.extend(self.nodes.iter().flat_map(Node::reads));
        let mut places = vec![None; self.values.len()];
        let mut values = Vec::new();
        let mut name = |id: ValueId| -> ValueId {
            *places[id.index()].get_or_insert_with(|| {
                values.push(self.values[id.index()].clone());
                ValueId(values.len() as u32 - 1)
            })
        };
        let inputs = self.inputs.iter();
        let inputs: Vec<_> =
            inputs.map(|i| Input { id: name(i.id), name: i.name.clone() }).collect();
        let constants = self.constants.into_iter().filter(|constant| used.contains(&constant.id));
        let constants: Vec<_> =
            constants.map(|c| Constant { id: name(c.id), value: c.value }).collect();
        let nodes = self.nodes.iter().map(|node| Node {
            operator: node.operator.clone(),
            args: node.args.iter().map(|argument| renamed(argument, &mut name)).collect(),
            results: node.results.iter().map(|result| result.renamed(&mut name)).collect(),
            effects: node.effects,
        });
        let nodes: Vec<_> = nodes.collect();
        let outputs: Vec<_> = self.outputs.iter().map(|out| out.renamed(&mut name)).collect();
        Graph { values, inputs, constants, nodes, outputs, extra: self.extra }
    }
}

fn renamed(argument: &Argument, name: &mut impl FnMut(ValueId) -> ValueId) -> Argument {
    Argument { arg: argument.arg.renamed(name), ..argument.clone() }
}
