//! Operations with several outputs: the steps of optimizers, and dropout with its mask.

use keyfold_plugin::{DType, Execution, Fields, Number, Result};

use crate::memory::{Buffer, View};
use crate::random::block;

/// An operation with its parameters, which are read before it is queued.
pub enum Fused {
    Adam(Adam),
    Sgd(Sgd),
    Dropout(Dropout),
}

/// Returns whether there is an operation of a group on these dtypes.
pub fn has(group: &str, name: &str, dtypes: &[DType]) -> bool {
    let floats = |dtypes: &[DType]| dtypes.iter().all(|dtype| dtype.is_floating());
    match (group, name) {
        ("optim", "adam" | "sgd") => floats(dtypes),
        ("dropout", "dropout") => floats(&dtypes[..2]) && dtypes[2..] == [DType::BOOL],
        _ => false,
    }
}

impl Fused {
    /// Returns the operation of a call; `None` for those of other groups.
    pub fn of(call: &Execution<'_, Buffer>) -> Result<Option<Fused>> {
        let fields = call.fields();
        Ok(match (call.group(), call.name()) {
            ("optim", "adam") => Some(Fused::Adam(Adam::new(&fields)?)),
            ("optim", "sgd") => Some(Fused::Sgd(Sgd::new(&fields)?)),
            ("dropout", "dropout") => Some(Fused::Dropout(Dropout::new(&fields)?)),
            _ => None,
        })
    }

    pub fn run(&self, inputs: &[View], outs: &[View]) {
        match self {
            Fused::Adam(adam) => adam.run(&inputs[0], outs),
            Fused::Sgd(sgd) => sgd.run(&inputs[0], outs),
            Fused::Dropout(dropout) => dropout.run(&inputs[0], outs),
        }
    }
}

fn floats(view: &View) -> Vec<f64> {
    view.numbers().into_iter().map(Number::real).collect()
}

fn write(view: &View, numbers: Vec<f64>) {
    view.set(numbers.into_iter().map(Number::Float));
}

/// The gradient as both steps take it.
struct Slope {
    sign: f64,
    weight_decay: f64,
}

impl Slope {
    fn new(fields: &Fields<'_>) -> Result<Slope> {
        let sign = if fields.flag("maximize")? { -1.0 } else { 1.0 };
        Ok(Slope { sign, weight_decay: fields.float("weight_decay")? })
    }

    fn at(&self, gradient: f64, parameter: f64) -> f64 {
        // No decay leaves infinite parameters out of the slope: 0 times infinity is NaN.
        match self.weight_decay == 0.0 {
            true => self.sign * gradient,
            false => self.sign * gradient + self.weight_decay * parameter,
        }
    }
}

/// The numbers of a step of Adam.
pub struct Adam {
    slope: Slope,
    step: i32,
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    /// The factor of a parameter by a decay beside the gradient.
    kept: f64,
    amsgrad: bool,
}

impl Adam {
    fn new(fields: &Fields<'_>) -> Result<Adam> {
        let (mut slope, lr) = (Slope::new(fields)?, fields.float("lr")?);
        let mut kept = 1.0;
        if fields.flag("decoupled")? {
            kept -= lr * slope.weight_decay;
            slope.weight_decay = 0.0;
        }
        Ok(Adam {
            slope,
            step: fields.int("step")?.try_into().unwrap_or(i32::MAX),
            lr,
            betas: [fields.float("beta1")?, fields.float("beta2")?],
            eps: fields.float("eps")?,
            kept,
            amsgrad: fields.flag("amsgrad")?,
        })
    }

    fn run(&self, gradient: &View, outs: &[View]) {
        let mut state: Vec<Vec<f64>> = outs.iter().map(floats).collect();
        let [first, second] = self.betas;
        let rate = self.lr / (1.0 - first.powi(self.step));
        let unbiased = 1.0 - second.powi(self.step);
        for (at, gradient) in floats(gradient).into_iter().enumerate() {
            let slope = self.slope.at(gradient, state[0][at]);
            state[1][at] = first * state[1][at] + (1.0 - first) * slope;
            state[2][at] = second * state[2][at] + (1.0 - second) * slope * slope;
            let mut size = state[2][at];
            if self.amsgrad {
                let most = state[3][at];
                size = if size > most || size.is_nan() { size } else { most };
                state[3][at] = size;
            }
            let step = rate * state[1][at] / ((size / unbiased).sqrt() + self.eps);
            state[0][at] = self.kept * state[0][at] - step;
        }
        outs.iter().zip(state).for_each(|(out, numbers)| write(out, numbers));
    }
}

/// The numbers of a step of gradient descent.
pub struct Sgd {
    slope: Slope,
    is_first: bool,
    lr: f64,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl Sgd {
    fn new(fields: &Fields<'_>) -> Result<Sgd> {
        Ok(Sgd {
            slope: Slope::new(fields)?,
            is_first: fields.int("step")? == 1,
            lr: fields.float("lr")?,
            momentum: fields.float("momentum")?,
            dampening: fields.float("dampening")?,
            nesterov: fields.flag("nesterov")?,
        })
    }

    fn run(&self, gradient: &View, outs: &[View]) {
        let mut state: Vec<Vec<f64>> = outs.iter().map(floats).collect();
        for (at, gradient) in floats(gradient).into_iter().enumerate() {
            let slope = self.slope.at(gradient, state[0][at]);
            let mut step = slope;
            if let Some(buffer) = state.get_mut(1) {
                buffer[at] = match self.is_first {
                    true => slope,
                    false => self.momentum * buffer[at] + (1.0 - self.dampening) * slope,
                };
                step = match self.nesterov {
                    true => slope + self.momentum * buffer[at],
                    false => buffer[at],
                };
            }
            state[0][at] -= self.lr * step;
        }
        outs.iter().zip(state).for_each(|(out, numbers)| write(out, numbers));
    }
}

/// The numbers of a dropout.
pub struct Dropout {
    threshold: u64,
    scale: f64,
    seed: u64,
    offset: u64,
}

impl Dropout {
    fn new(fields: &Fields<'_>) -> Result<Dropout> {
        Ok(Dropout {
            threshold: fields.int("threshold")? as u64,
            scale: fields.float("scale")?,
            seed: fields.bits("seed")?,
            offset: fields.bits("offset")?,
        })
    }

    fn run(&self, x: &View, outs: &[View]) {
        let is_wide = outs[0].layout.dtype() == DType::F64;
        let product = |x: f64| match is_wide {
            true => x * self.scale,
            false => f64::from(x as f32 * self.scale as f32),
        };
        let words = (0..).flat_map(|at: u64| block(self.seed, self.offset.wrapping_add(at)));
        let numbers = floats(x).into_iter().zip(words);
        let (kept, mask): (Vec<f64>, Vec<Number>) = numbers
            .map(|(x, word)| match u64::from(word) >= self.threshold {
                true => (product(x), Number::from(true)),
                false => (0.0, Number::from(false)),
            })
            .unzip();
        write(&outs[0], kept);
        outs[1].set(mask);
    }
}
