//! The arithmetic of the steps: Adam, and gradient descent with momentum.

use keyfold_backend::OptimParams;
use keyfold_kit::isa::{Isa, Work, dispatch};

use super::blocks::{OPERANDS, Step};

/// The floats that steps are computed in.
pub(super) trait Real: Copy + PartialOrd + Sync {
    fn of(x: f64) -> Self;
    fn sqrt(self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * by + add`, rounded once where the level has an instruction for it.
    fn mul_add<I: Isa>(self, by: Self, add: Self) -> Self;
}

macro_rules! real {
    // Inherent methods of the primitive types, which no trait offers.
    ($($type:ty: $mul_add:ident;)*) => {$(
        impl Real for $type {
            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $type
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$type>::sqrt(self)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn mul_add<I: Isa>(self, by: Self, add: Self) -> Self {
                I::$mul_add(self, by, add)
            }
        }
    )*};
}

real! {
    f32: mul_add_f32;
    f64: mul_add_f64;
}

/// The coefficients of an Adam step (D. Kingma, J. Ba, "Adam: a method for stochastic optimization", 2015),
/// with the weight decay in the gradient, or decoupled from it (I. Loshchilov, F. Hutter, "Decoupled
/// weight decay regularization", 2019), and perhaps with the greatest second moment so far (S. Reddi, S.
/// Kale, S. Kumar, "On the convergence of Adam and beyond", 2018).
#[derive(Clone, Copy)]
pub(super) struct Adam<T> {
    /// 1, or -1 to maximize.
    sign: T,
    /// The weight decay that is added to the gradient.
    decay: T,
    /// The factor of the parameters: 1, or less by the decoupled weight decay.
    keep: T,
    beta1: T,
    beta2: T,
    /// `1 - beta1` and `1 - beta2`.
    rest1: T,
    rest2: T,
    /// The learning rate over the first moment's bias correction, negative.
    rate: T,
    /// The reciprocal of the square root of the second moment's bias correction.
    unbias: T,
    eps: T,
    /// Whether the decay is in the gradient. Adding 0 times an infinite parameter would be NaN.
    decays: bool,
    amsgrad: bool,
}

impl<T: Real> Adam<T> {
    /// Computes the coefficients, in float64.
    pub(super) fn new(params: &OptimParams) -> Self {
        let step = params.step as f64;
        let bias1 = 1.0 - params.beta1.powf(step);
        let bias2 = 1.0 - params.beta2.powf(step);
        let decoupled = if params.decoupled { params.lr * params.weight_decay } else { 0.0 };
        Adam {
            sign: T::of(if params.maximize { -1.0 } else { 1.0 }),
            decay: T::of(params.weight_decay),
            keep: T::of(1.0 - decoupled),
            beta1: T::of(params.beta1),
            beta2: T::of(params.beta2),
            rest1: T::of(1.0 - params.beta1),
            rest2: T::of(1.0 - params.beta2),
            rate: T::of(-params.lr / bias1),
            unbias: T::of(1.0 / bias2.sqrt()),
            eps: T::of(params.eps),
            decays: !params.decoupled && params.weight_decay != 0.0,
            amsgrad: params.amsgrad,
        }
    }

    /// Updates one element of the parameters and of the moments.
    #[inline(always)]
    fn update<I: Isa, const DECAYS: bool, const AMSGRAD: bool>(
        &self,
        grad: T,
        [param, first, second, greatest]: [&mut T; 4],
    ) {
        let mut grad = grad.mul(self.sign);
        if DECAYS {
            grad = param.mul_add::<I>(self.decay, grad);
        }
        *first = grad.mul_add::<I>(self.rest1, first.mul(self.beta1));
        *second = grad.mul(grad).mul_add::<I>(self.rest2, second.mul(self.beta2));
        let mut moment = *second;
        if AMSGRAD {
            // A NaN on either side stays.
            #[expect(clippy::eq_op, reason = "only NaN differs from itself")]
            let rises = *second > *greatest || *second != *second;
            *greatest = if rises { *second } else { *greatest };
            moment = *greatest;
        }
        let scale = moment.sqrt().mul_add::<I>(self.unbias, self.eps);
        *param = first.div(scale).mul_add::<I>(self.rate, param.mul(self.keep));
    }
}

/// A step over one run.
struct Run<'a, S, T> {
    step: &'a S,
    at: [*mut T; OPERANDS],
    len: usize,
}

impl<S: Each<T>, T: Real> Work for Run<'_, S, T> {
    type Output = ();
    // The steps wait for memory, so wider registers gain nothing.
    const AVX512: bool = false;

    #[inline(always)]
    fn run<I: Isa>(self) {
        // SAFETY: the caller of `Step::run` promises that.
        unsafe { self.step.each::<I>(self.at, self.len) }
    }
}

/// The loop of a step, compiled for each level.
trait Each<T>: Sync {
    /// # Safety
    /// As [`Step::run`].
    unsafe fn each<I: Isa>(&self, at: [*mut T; OPERANDS], len: usize);
}

impl<T: Real> Each<T> for Adam<T> {
    #[inline(always)]
    unsafe fn each<I: Isa>(&self, at: [*mut T; OPERANDS], len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.decays, self.amsgrad) {
                (false, false) => adam::<I, T, false, false>(self, at, len),
                (false, true) => adam::<I, T, false, true>(self, at, len),
                (true, false) => adam::<I, T, true, false>(self, at, len),
                (true, true) => adam::<I, T, true, true>(self, at, len),
            }
        }
    }
}

/// # Safety
/// As [`Step::run`].
#[inline(always)]
unsafe fn adam<I: Isa, T: Real, const DECAYS: bool, const AMSGRAD: bool>(
    step: &Adam<T>,
    at: [*mut T; OPERANDS],
    len: usize,
) {
    // A copy, which the compiler knows no write to change.
    let step = *step;
    // SAFETY: the caller's promise; no two written operands overlap, nor does the gradient one of them.
    unsafe {
        let [param, grad, first, second, greatest] = at;
        let param = std::slice::from_raw_parts_mut(param, len);
        let grad = std::slice::from_raw_parts(grad, len);
        let first = std::slice::from_raw_parts_mut(first, len);
        let second = std::slice::from_raw_parts_mut(second, len);
        for i in 0..len {
            let mut none = T::of(0.0);
            let greatest = if AMSGRAD { &mut *greatest.add(i) } else { &mut none };
            let state = [&mut param[i], &mut first[i], &mut second[i], greatest];
            step.update::<I, DECAYS, AMSGRAD>(grad[i], state);
        }
    }
}

impl<T: Real> Step<T> for Adam<T> {
    unsafe fn run(&self, at: [*mut T; OPERANDS], len: usize) {
        dispatch(Run { step: self, at, len });
    }
}

/// The coefficients of a step of gradient descent with momentum, as PyTorch defines it: the learning rate
/// isn't part of the momentum (Y. Nesterov's form after I. Sutskever and others, "On the importance of
/// initialization and momentum in deep learning", 2013).
#[derive(Clone, Copy)]
pub(super) struct Descent<T> {
    sign: T,
    decay: T,
    momentum: T,
    /// `1 - dampening`; 1 in the first step, when the momentum is the gradient.
    gain: T,
    /// The learning rate, negative.
    rate: T,
    decays: bool,
    nesterov: bool,
    /// Whether there is a momentum.
    gathers: bool,
    /// Whether the momentum begins here, and its buffer isn't read.
    begins: bool,
}

impl<T: Real> Descent<T> {
    /// Computes the coefficients; `gathers` is whether there is a buffer of momentum.
    pub(super) fn new(params: &OptimParams, gathers: bool) -> Self {
        let begins = params.step <= 1;
        Descent {
            sign: T::of(if params.maximize { -1.0 } else { 1.0 }),
            decay: T::of(params.weight_decay),
            momentum: T::of(params.momentum),
            gain: T::of(if begins { 1.0 } else { 1.0 - params.dampening }),
            rate: T::of(-params.lr),
            decays: params.weight_decay != 0.0,
            nesterov: params.nesterov,
            gathers,
            begins,
        }
    }
}

impl<T: Real> Each<T> for Descent<T> {
    #[inline(always)]
    unsafe fn each<I: Isa>(&self, at: [*mut T; OPERANDS], len: usize) {
        let step = *self;
        let [param, grad, buffer, ..] = at;
        // The flags are the same for all elements, so the compiler takes them out of the loop, or selects.
        for i in 0..len {
            // SAFETY: the caller's promise.
            unsafe {
                let (param, mut grad) = (param.add(i), grad.add(i).read().mul(step.sign));
                if step.decays {
                    grad = param.read().mul_add::<I>(step.decay, grad);
                }
                if step.gathers {
                    let before = if step.begins { T::of(0.0) } else { buffer.add(i).read() };
                    let momentum = before.mul_add::<I>(step.momentum, grad.mul(step.gain));
                    buffer.add(i).write(momentum);
                    grad = match step.nesterov {
                        true => momentum.mul_add::<I>(step.momentum, grad),
                        false => momentum,
                    };
                }
                param.write(grad.mul_add::<I>(step.rate, param.read()));
            }
        }
    }
}

impl<T: Real> Step<T> for Descent<T> {
    unsafe fn run(&self, at: [*mut T; OPERANDS], len: usize) {
        dispatch(Run { step: self, at, len });
    }
}
