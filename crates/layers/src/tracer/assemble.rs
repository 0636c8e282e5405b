//! Graphs of calls that weren't traced: of what waits in a pipeline, and of an operation that failed.

use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{Operator, Tags};
use keyfold_tensor::{Tensor, Value};

use super::ir::{Arg, Argument, Constant, Graph, Info, Node, ValueId};
use super::session::same;

/// The form of a call's results: one, several, or a list.
pub(crate) struct Results<'r> {
    /// `None` for one that the call doesn't give.
    pub(crate) forms: &'r [Option<Info>],
    pub(crate) is_list: bool,
}

/// A graph that is put together call by call.
#[derive(Default)]
pub(crate) struct Assembly(Graph);

impl Assembly {
    fn value(&mut self, info: Info) -> ValueId {
        self.0.values.push(info);
        ValueId(self.0.values.len() as u32 - 1)
    }

    /// Adds a call; `find` returns the values of tensors that calls before have made, and all others
    /// become constants. Returns the values of the results.
    pub(crate) fn call(
        &mut self,
        operator: &Operator<Value>,
        args: &[Value],
        results: &Results<'_>,
        find: &dyn Fn(&Tensor) -> Option<ValueId>,
    ) -> Vec<Option<ValueId>> {
        let schema = operator.schema();
        let mut arguments = Vec::with_capacity(args.len());
        for (at, (declared, arg)) in schema.arguments.iter().zip(args).enumerate() {
            let arg = self.arg(arg, find);
            let default = operator.default_value(at);
            arguments.push(Argument {
                name: declared.name.clone(),
                is_default: default.is_some_and(|d| same(&arg, keyfold_dispatch::Value::as_ref(d))),
                arg,
                written: declared.alias.as_ref().is_some_and(|alias| alias.write),
            });
        }
        let made: Vec<Option<ValueId>> =
            results.forms.iter().map(|form| form.clone().map(|form| self.value(form))).collect();
        let shown = made.iter().map(|value| match value {
            Some(value) => Arg::Value(*value),
            None => Arg::literal(Value::None),
        });
        let shown: Vec<Arg> = shown.collect();
        let random = operator.tags().contains(Tags::NONDETERMINISTIC_SEEDED)
            || schema.arguments.iter().any(|argument| *argument.ty.base() == Type::Generator);
        let effects = random || arguments.iter().any(|argument| argument.written);
        self.0.nodes.push(Node {
            operator: operator.name().to_owned(),
            args: arguments,
            results: if results.is_list { vec![Arg::List(shown)] } else { shown },
            effects,
        });
        made
    }

    fn arg(&mut self, arg: &Value, find: &dyn Fn(&Tensor) -> Option<ValueId>) -> Arg {
        match arg {
            Value::Tensor(tensor) => Arg::Value(match find(tensor) {
                Some(known) => known,
                None => {
                    let id = self.value(Info::of(tensor));
                    self.0.constants.push(Constant { id, value: arg.clone() });
                    id
                }
            }),
            Value::List(items) if items.iter().any(|item| matches!(item, Value::Tensor(_))) => {
                Arg::List(items.iter().map(|item| self.arg(item, find)).collect())
            }
            other => Arg::literal(other.clone()),
        }
    }

    /// Returns the graph with these outputs.
    pub(crate) fn finish(mut self, outputs: impl IntoIterator<Item = ValueId>) -> Graph {
        self.0.outputs = outputs.into_iter().map(Arg::Value).collect();
        self.0.numbered()
    }
}
