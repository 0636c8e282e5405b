//! Matrix products with an epilogue as graphs.

use keyfold_backend::{LinearFactor, LinearParams, Operation};
use keyfold_core::layout::broadcast_shapes;
use keyfold_core::{DType, Result};

use super::draft::{Draft, Operand, product};
use super::key::Key;
use super::{GraphGroup, activation, floats_of_one_dtype, value_at_zero};
use crate::{Operation as Node, Pointwise, PointwiseMode, Port};

impl GraphGroup for LinearParams {
    fn write(&self, key: &mut Key) {
        let &LinearParams { op: _, has_addend, activation, alpha, beta } = self;
        key.word(u64::from(activation as u32) << 1 | u64::from(has_addend));
        for LinearFactor { re, im, integer } in [alpha, beta] {
            key.words([re.to_bits(), im.to_bits(), integer as u64]);
        }
    }

    fn refusal(op: &Operation, inputs: &[DType], outputs: &[DType]) -> Option<String> {
        match op.name() {
            "matmul" => floats_of_one_dtype(inputs.iter().chain(outputs)),
            other => Some(format!("it has no operation named '{other}'")),
        }
    }

    fn draft(&self, draft: &mut Draft<'_>) -> Result<()> {
        let dims = Dims::new(&draft.sizes(0), &draft.sizes(1))?;
        let &Dims { batch, m, k, n, .. } = &dims;
        if k == 0 {
            return of_nothing(self, draft, &dims);
        }
        let a = dims.matrices(draft, 0, m, k)?;
        let b = dims.matrices(draft, 1, k, n)?;
        let addend = self.has_addend.then(|| dims.addend(draft)).transpose()?;
        let out = draft.output(0, &[batch, m, n])?;
        let mut sketch = draft.sketch("matmul");
        let ports = [(Port::A, sketch.bind("a", &a)), (Port::B, sketch.bind("b", &b))];
        let mut chain = Vec::new();
        if let Some(addend) = &addend {
            let (alpha1, alpha2) = (self.alpha.re.into(), self.beta.re.into());
            let add = Pointwise { alpha1, alpha2, ..Pointwise::new(PointwiseMode::Add) };
            chain.push((add, Some(sketch.bind("addend", addend))));
        } else if !self.alpha.is_one() {
            let alpha = sketch.number(self.alpha.re, 3);
            chain.push((Pointwise::new(PointwiseMode::Mul), Some(alpha)));
        }
        chain.extend(activation(self.activation).map(|function| (function, None)));
        let out = sketch.bind("out", &out);
        let product = if chain.is_empty() { out } else { sketch.between(out) };
        sketch.operation(Node::Matmul, &ports, &[(Port::C, product)]);
        sketch.chain(product, chain, out);
        draft.add(sketch);
        Ok(())
    }
}

/// The results of sums without terms: what the activation makes of the addend, or of 0.
fn of_nothing(params: &LinearParams, draft: &mut Draft<'_>, dims: &Dims) -> Result<()> {
    if !params.has_addend {
        draft.fill(0, value_at_zero(params.activation));
        return Ok(());
    }
    let mut addend = dims.addend(draft)?;
    let function = activation(params.activation);
    if !params.beta.is_one() || function.is_some() {
        let result = draft.scratch(addend.dtype, &addend.dims)?;
        let mut sketch = draft.sketch("addend of a product without terms");
        let (x, y) = (sketch.bind("addend", &addend), sketch.bind("y", &result));
        let beta = sketch.number(params.beta.re, 3);
        let scale = (Pointwise::new(PointwiseMode::Mul), Some(beta));
        let chain = [scale].into_iter().chain(function.map(|function| (function, None)));
        sketch.chain(x, chain.collect(), y);
        draft.add(sketch);
        addend = result;
    }
    draft.spread(0, &[dims.batch, dims.m, dims.n], addend)
}

/// The sizes of a product as cuDNN takes it, with three dimensions.
struct Dims {
    /// The dimensions before the last two of the result.
    leading: Vec<i64>,
    /// Whether the matrices of `a` are the rows of one matrix, since there is one `b`.
    folds: bool,
    batch: i64,
    /// Rows, of all matrices of `a` where they are one.
    m: i64,
    k: i64,
    n: i64,
    /// Rows of each matrix of `a`.
    rows: i64,
}

impl Dims {
    fn new(a: &[i64], b: &[i64]) -> Result<Dims> {
        let ((of_a, a), (of_b, b)) = (a.split_at(a.len() - 2), b.split_at(b.len() - 2));
        let sizes = |list: &[i64]| list.iter().map(|&size| size as usize).collect::<Vec<_>>();
        let leading = broadcast_shapes(&sizes(of_a), &sizes(of_b))?;
        let leading: Vec<i64> = leading.iter().map(|&size| size as i64).collect();
        let (all, folds) = (product(&leading), product(of_b) == 1);
        let (batch, m) = if folds { (1, all * a[0]) } else { (all, a[0]) };
        Ok(Dims { leading, folds, batch, m, k: a[1], n: b[1], rows: a[0] })
    }

    /// Returns an input of matrices: one, or as many as there are products.
    fn matrices(
        &self,
        draft: &mut Draft<'_>,
        input: usize,
        rows: i64,
        columns: i64,
    ) -> Result<Operand> {
        let sizes = draft.sizes(input);
        if product(&sizes) == rows * columns {
            return draft.input(input, &[1, rows, columns]);
        }
        let own = &sizes[sizes.len() - 2..];
        let all = [&self.leading, own].concat();
        draft.expanded(input, &all, &[self.batch, rows, columns])
    }

    /// Returns the addend: a row or a number for all products, or all of its elements.
    fn addend(&self, draft: &mut Draft<'_>) -> Result<Operand> {
        let sizes = draft.sizes(2);
        let at = |back: usize| sizes.len().checked_sub(back).map_or(1, |axis| sizes[axis]);
        let (rows, columns) = (at(2), at(1));
        let is_one = product(&sizes) == rows * columns;
        if is_one && (rows == 1 || !self.folds || self.m == self.rows) {
            return draft.input(2, &[1, rows, columns]);
        }
        let (rows, dims) = match self.folds {
            true => (self.rows, [1, self.m, columns]),
            false => (rows, [self.batch, rows, columns]),
        };
        let all = [&self.leading[..], &[rows, columns]].concat();
        draft.expanded(2, &all, &dims)
    }
}
