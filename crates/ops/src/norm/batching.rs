//! Batching rules of normalizations: the lanes of all examples are one stack, and the channels of all examples are
//! the channels of one call.

use keyfold_core::Result;
use keyfold_layers::vmap::{Batch, move_dim};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use crate::arg_values::{int, ints, is_true};
use crate::aten;

/// Wraps each result that is wanted by `wrap`.
fn wrapped(result: Value, wrap: impl Fn(Tensor) -> Result<Value>) -> Result<Option<Value>> {
    let Value::Tuple(results) = result else { return Ok(None) };
    let one = |result| match result {
        Value::None => Ok(Value::None),
        result => wrap(result.into_tensor()?),
    };
    Ok(Some(Value::Tuple(results.into_iter().map(one).collect::<Result<_>>()?)))
}

/// The places of the arguments of a normalization over lanes.
struct LanePlaces {
    /// The tensors that have a part for each lane.
    tensors: &'static [usize],
    /// The tensors that all lanes share.
    shared: &'static [usize],
    /// The sizes of a lane.
    normalized: usize,
    /// Which gradients are wanted.
    mask: Option<usize>,
}

/// Normalizes the lanes of all examples by one call. The loop stays for weights of each example, and for the
/// gradients of weights, which are sums over the lanes of one example.
fn by_lanes(batch: &Batch<'_, '_>, places: &LanePlaces) -> Result<Option<Value>> {
    let args = batch.args;
    for place in places.shared {
        if args[*place].tensor().is_ok() && batch.operand(*place)?.dim.is_some() {
            return Ok(None);
        }
    }
    let of_weights = places.mask.is_some_and(|mask| match args[mask] {
        list if list.list_len().is_some() => list.items().skip(1).any(is_true),
        each => is_true(each),
    });
    let normalized = ints(args[places.normalized]).map_or(usize::MAX, |sizes| sizes.len());
    let mut tensors: SmallVec<[Tensor; 4]> = SmallVec::new();
    for (at, place) in places.tensors.iter().enumerate() {
        let operand = batch.operand(*place)?;
        if of_weights || at == 0 && operand.rank() < normalized {
            return Ok(None);
        }
        tensors.push(operand.batched(batch.size)?);
    }
    let mut args = args.to_vec();
    for (place, tensor) in places.tensors.iter().zip(&tensors) {
        args[*place] = tensor.into();
    }
    wrapped(batch.call(&args)?, |result| batch.wrap(Value::Tensor(result), 0))
}

pub(super) fn layer(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let places = LanePlaces { tensors: &[0], shared: &[2, 3], normalized: 1, mask: None };
    by_lanes(batch, &places)
}

pub(super) fn layer_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let tensors = &[0, 1, 3, 4];
    by_lanes(batch, &LanePlaces { tensors, shared: &[5, 6], normalized: 2, mask: Some(7) })
}

pub(super) fn rms(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let places = LanePlaces { tensors: &[0], shared: &[2], normalized: 1, mask: None };
    by_lanes(batch, &places)
}

pub(super) fn rms_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let tensors = &[0, 1, 3];
    by_lanes(batch, &LanePlaces { tensors, shared: &[4], normalized: 2, mask: Some(5) })
}

/// A tensor of a normalization by channels, or by groups of them.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// `[N, C, ...]`
    Images,
    /// `[N, G]`
    Groups,
    /// `[C]`
    Channels,
}

/// Calls with the channels of all examples: `[N, B C, ...]`, `[N, B G]`, `[B C]`. The numbers at `counts` are those
/// of channels and of groups.
fn by_channels(
    batch: &Batch<'_, '_>,
    kinds: &[(usize, Kind)],
    counts: &[usize],
) -> Result<Option<Value>> {
    let mut tensors: SmallVec<[(usize, Tensor); 8]> = SmallVec::new();
    for (place, kind) in kinds {
        if matches!(batch.args[*place], ValueRef::None) {
            continue;
        }
        let operand = batch.operand(*place)?;
        let fits = match (kind, operand.rank()) {
            (Kind::Images, rank) => rank >= 2,
            (Kind::Groups, rank) => rank == 2,
            (Kind::Channels, rank) => rank == 1,
        };
        if !fits || batch.size == 0 {
            return Ok(None);
        }
        let at = usize::from(*kind != Kind::Channels);
        let all = operand.batched(batch.size)?;
        let mut sizes = aten::sizes(&all.shape()[1..]);
        sizes[at] *= batch.size as i64;
        tensors.push((*place, aten::reshape(&move_dim(&all, 0, at)?, &sizes)?));
    }
    let mut args = batch.args.to_vec();
    for (place, tensor) in &tensors {
        args[*place] = tensor.into();
    }
    for place in counts {
        let Some(count) = int(args[*place]) else { return Ok(None) };
        args[*place] = ValueRef::Int(count * batch.size as i64);
    }
    wrapped(batch.call(&args)?, |result| {
        let at = usize::from(result.ndim() > 1);
        let mut sizes = aten::sizes(result.shape());
        sizes[at] /= batch.size as i64;
        sizes.insert(at, batch.size as i64);
        batch.wrap(Value::Tensor(aten::reshape(&result, &sizes)?), at)
    })
}

pub(super) fn group(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let kinds = [(0, Kind::Images), (1, Kind::Channels), (2, Kind::Channels)];
    by_channels(batch, &kinds, &[4, 6])
}

pub(super) fn group_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    use Kind::{Channels, Groups, Images};
    let kinds = [(0, Images), (1, Images), (2, Groups), (3, Groups), (4, Channels)];
    by_channels(batch, &kinds, &[6, 8])
}

/// The forms of batch norm, whose tensors of channels follow the input: those in `_native_batch_norm_legit.no_stats`
/// are two, and four in the others.
pub(super) fn batch_norm(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    let is_tensor = |place: &usize| {
        batch
            .args
            .get(*place)
            .is_some_and(|arg| arg.tensor().is_ok() || matches!(arg, ValueRef::None))
    };
    let channels = (1..5).take_while(is_tensor).map(|place| (place, Kind::Channels));
    let kinds: SmallVec<[_; 5]> = [(0, Kind::Images)].into_iter().chain(channels).collect();
    by_channels(batch, &kinds, &[])
}

pub(super) fn batch_norm_backward(batch: &Batch<'_, '_>) -> Result<Option<Value>> {
    use Kind::{Channels, Images};
    let channels = (2..7).map(|place| (place, Channels));
    let kinds: SmallVec<[_; 7]> = [(0, Images), (1, Images)].into_iter().chain(channels).collect();
    by_channels(batch, &kinds, &[])
}
