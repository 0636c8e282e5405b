//! Attention and its gradients, with all scores of a query at once.

use keyfold_core::{DType, layout};
use keyfold_tensor::Value;

use super::{Expected, Given, accumulator, sum_error};
use crate::array::Array;
use crate::number::{Number, unit};

pub(super) fn one(name: &str, given: &Given<'_>) -> Option<Expected> {
    if name != "aten::scaled_dot_product_attention" {
        return None;
    }
    let [query, key, value] = [0, 1, 2].map(|at| given.array(at));
    let mask = given.optional(3);
    let group = |x: &Array| x.shape[x.shape.len().saturating_sub(3)];
    let grouped = given.flag(7) && query.shape.len() > 2 && group(query) != group(key);
    let (key, value) = match grouped {
        true => (repeated(key, group(query)), repeated(value, group(query))),
        false => (key.clone(), value.clone()),
    };
    let all = Attention::new([query, &key, &value], mask, given.flag(5), scale(given, 6));
    Some(all.results().swap_remove(0))
}

pub(super) fn several(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    let first = match name {
        "keyfold::attention" => 0,
        "keyfold::attention_backward" => 1,
        _ => return None,
    };
    let operands = [0, 1, 2].map(|at| given.array(first + at));
    let mask = given.optional(first + 3);
    let causal = given.flag(4 + 2 * first);
    let all = Attention::new(operands, mask, causal, scale(given, 5 + 2 * first));
    Some(match first {
        0 => all.results(),
        _ => {
            let results = given.tensors(5);
            let [Some(out), Some(logarithms)] = results[..] else { return None };
            all.gradients(given.array(0), out, logarithms)
        }
    })
}

fn scale(given: &Given<'_>, at: usize) -> Option<f64> {
    (!matches!(given.value(at), Value::None)).then(|| given.float(at))
}

/// Repeats each head, in the third dimension from the end, so that there are `heads`.
fn repeated(x: &Array, heads: usize) -> Array {
    let at = x.shape.len() - 3;
    let mut shape = x.shape.clone();
    let group = heads / shape[at].max(1);
    shape[at] = heads;
    Array::from_fn(x.dtype, &shape, |index| {
        let mut index = index.to_vec();
        index[at] /= group;
        x.at(&index)
    })
}

/// An attention with its operands.
pub(crate) struct Attention<'a> {
    query: &'a Array,
    key: &'a Array,
    value: &'a Array,
    mask: Option<&'a Array>,
    causal: bool,
    scale: f64,
    leading: Vec<usize>,
}

/// The scores of one query, and the greatest error of one.
struct Scores {
    items: Vec<f64>,
    error: f64,
}

impl<'a> Attention<'a> {
    pub(crate) fn new(
        [query, key, value]: [&'a Array; 3],
        mask: Option<&'a Array>,
        causal: bool,
        scale: Option<f64>,
    ) -> Attention<'a> {
        let leading = |x: &Array| x.shape[..x.shape.len() - 2].to_vec();
        let both = layout::broadcast_shapes(&leading(query), &leading(key));
        let all = both.and_then(|both| layout::broadcast_shapes(&both, &leading(value)));
        let leading = all.expect("the sample's operands broadcast").to_vec();
        let depth = query.shape[query.shape.len() - 1].max(1) as f64;
        let scale = scale.unwrap_or(1.0 / depth.sqrt());
        Attention { query, key, value, mask, causal, scale, leading }
    }

    fn dtype(&self) -> DType {
        self.query.dtype
    }

    /// Half a unit in the last place of the numbers that accumulate.
    fn unit(&self) -> f64 {
        unit(accumulator(self.dtype()))
    }

    fn queries(&self) -> usize {
        self.query.shape[self.query.shape.len() - 2]
    }

    fn depth(&self) -> usize {
        self.query.shape[self.query.shape.len() - 1]
    }

    fn keys(&self) -> usize {
        self.key.shape[self.key.shape.len() - 2]
    }

    fn values(&self) -> usize {
        self.value.shape[self.value.shape.len() - 1]
    }

    fn shape(&self, sizes: &[usize]) -> Vec<usize> {
        [&self.leading[..], sizes].concat()
    }

    fn at(&self, x: &Array, outer: &[usize], row: usize, column: usize) -> f64 {
        x.broadcast_at(&[outer, &[row, column]].concat()).float()
    }

    fn scores(&self, outer: &[usize], query: usize) -> Scores {
        let mut error = 0.0_f64;
        let items = (0..self.keys()).map(|key| {
            let (mut sum, mut sizes) = (0.0, 0.0);
            for k in 0..self.depth() {
                let term = self.at(self.query, outer, query, k) * self.at(self.key, outer, key, k);
                sum += term * self.scale;
                sizes += (term * self.scale).abs();
            }
            error = error.max((sum_error(self.depth(), self.dtype()) + 3.0 * self.unit()) * sizes);
            let mask = self.mask.map(|mask| {
                let index = [outer, &[query, key]].concat();
                (mask.dtype == DType::Bool, mask.broadcast_at(&index))
            });
            match mask {
                Some((true, chosen)) if !chosen.truth() => f64::NEG_INFINITY,
                Some((false, addend)) => sum + addend.float(),
                _ if self.causal && key > query => f64::NEG_INFINITY,
                _ => sum,
            }
        });
        let items: Vec<f64> = items.collect();
        let finite = items.iter().filter(|x| x.is_finite());
        let greatest = finite.fold(0.0_f64, |greatest, x| greatest.max(x.abs()));
        Scores { error: error + 4.0 * self.unit() * greatest, items }
    }

    /// The results and the logarithms.
    pub(crate) fn results(&self) -> Vec<Expected> {
        let (dtype, u) = (self.dtype(), self.unit());
        let of_keys = sum_error(self.keys(), dtype);
        let row = |outer: &[usize], query: usize| {
            let scores = self.scores(outer, query);
            let greatest = scores.items.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let base = if greatest == f64::NEG_INFINITY { 0.0 } else { greatest };
            let powers: Vec<f64> = scores.items.iter().map(|x| (x - base).exp()).collect();
            let sum: f64 = powers.iter().sum();
            (powers, sum, base, scores.error)
        };
        let out = Expected::from_fn(dtype, &self.shape(&[self.queries(), self.values()]), |at| {
            let (outer, own) = at.split_at(at.len() - 2);
            let (powers, sum, _, error) = row(outer, own[0]);
            let relative = 2.0 * error + 2.0 * of_keys + 16.0 * u;
            let (mut total, mut sizes) = (0.0, 0.0);
            for (key, power) in powers.iter().enumerate().filter(|_| sum > 0.0) {
                let term = power / sum * self.at(self.value, outer, key, own[1]);
                total += term;
                sizes += term.abs();
            }
            (Number::Float(total), sizes * (relative.exp_m1() + of_keys))
        });
        let wide = accumulator(dtype);
        let logarithms = Expected::from_fn(wide, &self.shape(&[self.queries()]), |at| {
            let (outer, own) = at.split_at(at.len() - 1);
            let (_, sum, base, error) = row(outer, own[0]);
            let item = if sum == 0.0 { f64::NEG_INFINITY } else { base + sum.ln() };
            (Number::Float(item), error + of_keys + 16.0 * u + 4.0 * u * base.abs())
        });
        vec![out, logarithms]
    }

    /// The gradients of query, key and value, from what the forward computation returned.
    fn gradients(&self, grad: &Array, out: &Array, logarithms: &Array) -> Vec<Expected> {
        let (dtype, u) = (self.dtype(), self.unit());
        let (queries, keys) = (self.queries(), self.keys());
        // The probabilities and the gradients of the scores, each with its error.
        let one = |outer: &[usize], query: usize| -> Vec<[(f64, f64); 2]> {
            let scores = self.scores(outer, query);
            let logarithm = logarithms.at(&[outer, &[query]].concat()).float();
            let dots = |other: &dyn Fn(usize) -> f64| {
                let terms = (0..self.values()).map(|k| self.at(grad, outer, query, k) * other(k));
                let (sum, sizes) = terms
                    .fold((0.0, 0.0), |(sum, sizes), term| (sum + term, sizes + f64::abs(term)));
                (sum, sizes * (sum_error(self.values(), dtype) + 2.0 * u))
            };
            let (dot, dot_error) = dots(&|k| self.at(out, outer, query, k));
            let gradient = |(key, score): (usize, &f64)| {
                let none = logarithm == f64::NEG_INFINITY;
                let p = if none { 0.0 } else { (score - logarithm).exp() };
                let relative = (scores.error + 4.0 * u * logarithm.abs() + 8.0 * u).exp_m1();
                let relative = if p == 0.0 { 0.0 } else { relative };
                let (slope, slope_error) = dots(&|k| self.at(self.value, outer, key, k));
                let ds = p * (slope - dot) * self.scale;
                let error = (slope_error + dot_error) * (p * self.scale).abs()
                    + (relative + 4.0 * u) * ds.abs();
                [(p, p * relative), (ds, error)]
            };
            scores.items.iter().enumerate().map(gradient).collect()
        };
        let product = |terms: &mut dyn Iterator<Item = ((f64, f64), f64)>, count: usize| {
            let more = sum_error(count, dtype) + 2.0 * u;
            let (sum, error) = terms.fold((0.0, 0.0), |(sum, error), ((x, own), factor)| {
                (sum + x * factor, error + (own + x.abs() * more) * factor.abs())
            });
            (Number::Float(sum), error)
        };
        let of_query = Expected::from_fn(dtype, &self.shape(&[queries, self.depth()]), |at| {
            let (outer, own) = at.split_at(at.len() - 2);
            let row = one(outer, own[0]);
            let terms = row.iter().enumerate();
            let key = |key| self.at(self.key, outer, key, own[1]);
            product(&mut terms.map(|(j, [_, ds])| (*ds, key(j))), keys)
        });
        let rows =
            |outer: &[usize]| (0..queries).map(|query| one(outer, query)).collect::<Vec<_>>();
        let of_key = Expected::from_fn(dtype, &self.shape(&[keys, self.depth()]), |at| {
            let (outer, own) = at.split_at(at.len() - 2);
            let rows = rows(outer);
            let query = |query| self.at(self.query, outer, query, own[1]);
            let terms = rows.iter().enumerate();
            product(&mut terms.map(|(i, row)| (row[own[0]][1], query(i))), queries)
        });
        let of_value = Expected::from_fn(dtype, &self.shape(&[keys, self.values()]), |at| {
            let (outer, own) = at.split_at(at.len() - 2);
            let rows = rows(outer);
            let slope = |query| self.at(grad, outer, query, own[1]);
            let terms = rows.iter().enumerate();
            product(&mut terms.map(|(i, row)| (row[own[0]][0], slope(i))), queries)
        });
        vec![of_query, of_key, of_value]
    }
}
