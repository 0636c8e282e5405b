//! Views: the same memory under dimensions that libcudnn's engines take.

use keyfold_core::Result;
use keyfold_cudnn::{Convolution, OpSpec, Operation, PointwiseMode, Port, TensorSpec, Uid};

use super::Part;
use super::sketch::{Place, Sketch};

/// The most plans that one operation is split into along a dimension.
const SLICES: i64 = 64;

/// Axes of a part's tensors that may be taken for one: in each tensor, all of a group's axes are there and lie one in the
/// other, or none is.
struct Groups {
    /// The axes, the outermost first.
    axes: Vec<Vec<usize>>,
    sizes: Vec<i64>,
}

/// Makes the parts of operations under views that engines take; as they are where none is known.
pub(super) fn parts(sketch: &mut Sketch, operations: &[OpSpec]) -> Result<Vec<Part>> {
    let is = |wanted: fn(&Operation) -> bool| operations.iter().any(|op| wanted(&op.operation));
    let plain = operations.iter().all(|op| {
        matches!(
            op.operation,
            Operation::Pointwise(_) | Operation::Reduction(_) | Operation::Matmul
        )
    });
    let viewed = if !plain {
        lines(sketch, operations)
    } else if is(|op| matches!(op, Operation::Matmul)) {
        batches(sketch, operations)
    } else if is(|op| matches!(op, Operation::Reduction(_))) {
        matrices(sketch, operations)
    } else {
        rows(sketch, operations)
    };
    match viewed {
        Some((views, step)) if !views.is_empty() => {
            let parts: Result<Vec<Part>> =
                views.into_iter().map(|(local, operations)| local.part(operations)).collect();
            sketch.note(step);
            parts
        }
        _ => Ok(vec![sketch.part(operations.to_vec())?]),
    }
}

/// Sketches with views, each with the operations of one part, and what was done.
type Viewed = Option<(Vec<(Sketch, Vec<OpSpec>)>, &'static str)>;

/// Returns the tensors of operations, each once.
fn used(operations: &[OpSpec]) -> Vec<Uid> {
    let mut all: Vec<Uid> = Vec::new();
    for (_, uid) in operations.iter().flat_map(|op| op.inputs.iter().chain(&op.outputs)) {
        if !all.contains(uid) {
            all.push(*uid);
        }
    }
    all
}

fn is_one(tensor: &TensorSpec) -> bool {
    tensor.dims.iter().all(|&size| size == 1)
}

/// Finds the groups of axes of tensors of one rank.
fn group(sketch: &Sketch, uids: &[Uid]) -> Option<Groups> {
    let tensors: Vec<&TensorSpec> =
        uids.iter().map(|uid| sketch.tensor(*uid)).filter(|tensor| !is_one(tensor)).collect();
    let rank = tensors.first()?.dims.len();
    if tensors.iter().any(|tensor| tensor.dims.len() != rank) {
        return None;
    }
    let full: Vec<i64> = (0..rank)
        .map(|axis| tensors.iter().map(|tensor| tensor.dims[axis]).max().unwrap_or(1))
        .collect();
    // The order of the axes in memory is that of the largest tensor that has memory.
    let reference = tensors
        .iter()
        .filter(|tensor| !tensor.is_virtual)
        .max_by_key(|tensor| tensor.numel().unwrap_or(0))?;
    let mut order: Vec<usize> = (0..rank).filter(|&axis| full[axis] > 1).collect();
    order.sort_by_key(|&axis| (std::cmp::Reverse(reference.strides[axis]), axis));
    let mut axes: Vec<Vec<usize>> = Vec::new();
    for axis in order {
        let joins = axes.last().and_then(|group| group.last()).is_some_and(|&outer| {
            tensors.iter().all(|tensor| {
                let (a, b) = (tensor.dims[outer], tensor.dims[axis]);
                let in_order = tensor.is_virtual
                    || tensor.strides[outer] == tensor.strides[axis].saturating_mul(b);
                (a == 1 && b == 1) || (a == full[outer] && b == full[axis] && in_order)
            })
        });
        match axes.last_mut().filter(|_| joins) {
            Some(group) => group.push(axis),
            None => axes.push(vec![axis]),
        }
    }
    let sizes = axes.iter().map(|group| group.iter().map(|&axis| full[axis]).product()).collect();
    Some(Groups { axes, sizes })
}

impl Groups {
    /// Returns the sizes of a tensor along the groups, and the strides of those that it has.
    fn of(&self, tensor: &TensorSpec) -> (Vec<i64>, Vec<i64>) {
        if is_one(tensor) {
            return (vec![1; self.axes.len()], vec![1; self.axes.len()]);
        }
        let sizes: Vec<i64> = self
            .axes
            .iter()
            .map(|group| group.iter().map(|&axis| tensor.dims[axis]).product())
            .collect();
        let mut strides: Vec<i64> =
            self.axes.iter().map(|group| tensor.strides[group[group.len() - 1]]).collect();
        // Packed where there is no memory, and where a size of 1 leaves the stride open.
        let mut packed = 1;
        for place in (0..sizes.len()).rev() {
            if tensor.is_virtual || sizes[place] == 1 {
                strides[place] = packed;
            }
            packed = strides[place] * sizes[place];
        }
        (sizes, strides)
    }

    /// Splits the last group, which has several axes, in two, so that the inner part has 32 elements or more.
    fn halve(&mut self, sketch: &Sketch, uids: &[Uid]) {
        let Some(group) = self.axes.last().filter(|group| group.len() > 1).cloned() else { return };
        let size = |axis: usize| {
            uids.iter().filter_map(|uid| sketch.dims(*uid).get(axis)).copied().max().unwrap_or(1)
        };
        let mut inner = 1;
        let mut from = group.len();
        while from > 1 && inner < 32 {
            from -= 1;
            inner *= size(group[from]);
        }
        self.axes.pop();
        let total = self.sizes.pop().unwrap_or(1);
        self.axes.extend([group[..from].to_vec(), group[from..].to_vec()]);
        self.sizes.extend([total / inner, inner]);
    }
}

/// Gives each tensor of a sketch other dimensions.
fn with_views(
    sketch: &Sketch,
    uids: &[Uid],
    view: impl Fn(&TensorSpec) -> (Vec<i64>, Vec<i64>),
) -> Sketch {
    let mut local = sketch.clone();
    for uid in uids {
        if let Some(tensor) = local.tensors.get_mut(uid) {
            (tensor.dims, tensor.strides) = view(tensor);
        }
    }
    local
}

/// Moves the axis of operations that count along one; `None` where a view hasn't that axis.
fn counting(operations: &[OpSpec], to: impl Fn(usize) -> Option<usize>) -> Option<Vec<OpSpec>> {
    let mut moved = operations.to_vec();
    for op in &mut moved {
        if let Operation::Pointwise(pointwise) = &mut op.operation
            && pointwise.mode == PointwiseMode::GenIndex
        {
            pointwise.axis = Some(to(usize::try_from(pointwise.axis?).ok()?)? as i64);
        }
    }
    Some(moved)
}

/// As [`counting`], for axes that are groups of their own.
fn with_axes(operations: &[OpSpec], groups: &Groups, front: usize) -> Option<Vec<OpSpec>> {
    counting(operations, |axis| {
        let place = groups.axes.iter().position(|group| group[..] == [axis])?;
        Some(front + place)
    })
}

/// Pointwise operations: three packed dimensions.
fn rows(sketch: &Sketch, operations: &[OpSpec]) -> Viewed {
    let uids = used(operations);
    let mut groups = group(sketch, &uids)?;
    if groups.axes.len() < 3 {
        groups.halve(sketch, &uids);
    }
    let front = 3_usize.checked_sub(groups.axes.len())?;
    let moved = with_axes(operations, &groups, front)?;
    let local = with_views(sketch, &uids, |tensor| {
        let (sizes, strides) = groups.of(tensor);
        let outer = sizes.first().copied().unwrap_or(1) * strides.first().copied().unwrap_or(1);
        let before = |value: i64| std::iter::repeat_n(value, front);
        (before(1).chain(sizes).collect(), before(outer).chain(strides).collect())
    });
    Some((vec![(local, moved)], "pointwise operations as rows of 3 dimensions, without a copy"))
}

/// A reduction and what is before it: a matrix as an image of one pixel, channels last.
fn matrices(sketch: &Sketch, operations: &[OpSpec]) -> Viewed {
    let reduction =
        operations.last().filter(|op| matches!(op.operation, Operation::Reduction(_)))?;
    let (x, y) = (reduction.input(Port::X)?, reduction.output(Port::Y)?);
    let uids = used(operations);
    let mut groups = group(sketch, &uids)?;
    if groups.axes.len() == 1 {
        groups.halve(sketch, &uids);
    }
    // An image's columns lie side by side.
    let lies_so = |uid: &Uid| {
        let (sizes, strides) = groups.of(sketch.tensor(*uid));
        sketch.tensor(*uid).is_virtual || sizes.last() == Some(&1) || strides.last() == Some(&1)
    };
    if !uids.iter().all(lies_so) {
        return None;
    }
    let sizes = groups.of(sketch.tensor(y)).0;
    let is_kept: Vec<bool> =
        sizes.iter().zip(&groups.sizes).map(|(size, full)| size == full).collect();
    if sketch.dims(x).iter().product::<i64>() != groups.sizes.iter().product::<i64>() {
        return None;
    }
    const STEP: &str = "a reduction as that of a matrix, without a copy";
    match is_kept[..] {
        [_] | [_, _] => {
            let moved = with_axes(operations, &groups, 2 - groups.axes.len())?;
            Some((vec![(as_images(sketch, &uids, &groups, 0), moved)], STEP))
        }
        // Rows and columns in each of a few blocks: one plan for each.
        [true, false, true] if groups.sizes[0] <= SLICES => {
            let inner =
                Groups { axes: groups.axes[1..].to_vec(), sizes: groups.sizes[1..].to_vec() };
            let moved = with_axes(operations, &inner, 0)?;
            let slices = 0..groups.sizes[0];
            let local = slices.map(|index| {
                let mut local = as_images(sketch, &uids, &groups, 1);
                for uid in &uids {
                    let (sizes, strides) = groups.of(sketch.tensor(*uid));
                    if sizes[0] > 1 && sketch.has_memory(*uid) {
                        let place = sketch.place(*uid);
                        let offset = place.offset + index * strides[0];
                        local.places.insert(*uid, Place { of: place.of, offset });
                    }
                }
                (local, moved.clone())
            });
            Some((
                local.collect(),
                "a reduction in the middle as one of a matrix for each block, without a copy",
            ))
        }
        _ => None,
    }
}

/// Gives each tensor the dimensions of a matrix, behind the first `skipped` groups, as an image with channels last.
fn as_images(sketch: &Sketch, uids: &[Uid], groups: &Groups, skipped: usize) -> Sketch {
    with_views(sketch, uids, |tensor| {
        let (sizes, strides) = groups.of(tensor);
        let (sizes, strides) = (&sizes[skipped..], &strides[skipped..]);
        let (rows, columns, row) = match (sizes, strides) {
            ([rows, columns], [row, _]) => (*rows, *columns, *row),
            // One group: a matrix of one row.
            ([columns], _) => (1, *columns, *columns),
            _ => (1, 1, 1),
        };
        let row = if rows == 1 { columns } else { row };
        (vec![rows, columns, 1, 1], vec![row, 1, row, row])
    })
}

/// Products: one dimension of batches.
fn batches(sketch: &Sketch, operations: &[OpSpec]) -> Viewed {
    let uids = used(operations);
    let rank = uids.iter().map(|uid| sketch.dims(*uid).len()).max()?;
    if rank == 3 || rank < 2 {
        return None;
    }
    let tensors: Vec<&TensorSpec> =
        uids.iter().map(|uid| sketch.tensor(*uid)).filter(|tensor| !is_one(tensor)).collect();
    let fits = tensors.iter().all(|tensor| {
        let (dims, strides) = (&tensor.dims, &tensor.strides);
        dims.len() == rank
            && (tensor.is_virtual || {
                let axes: Vec<usize> = (0..rank - 2).filter(|&axis| dims[axis] > 1).collect();
                axes.windows(2).all(|pair| strides[pair[0]] == strides[pair[1]] * dims[pair[1]])
            })
    });
    // In each tensor, all batches are there or none is.
    let batches = |tensor: &TensorSpec| tensor.dims[..rank - 2].iter().product::<i64>();
    let most = tensors.iter().map(|tensor| batches(tensor)).max()?;
    if !fits
        || tensors.iter().any(|tensor| !matches!(batches(tensor), 1) && batches(tensor) != most)
    {
        return None;
    }
    let local = with_views(sketch, &uids, |tensor| {
        if is_one(tensor) {
            return (vec![1; 3], vec![1; 3]);
        }
        let inner = &tensor.dims[rank - 2..];
        let steps = &tensor.strides[rank - 2..];
        let size = batches(tensor);
        // The innermost dimension of batches that isn't 1 has their distance.
        let step = (0..rank - 2)
            .rev()
            .find(|&axis| tensor.dims[axis] > 1)
            .map(|axis| tensor.strides[axis]);
        let packed = inner[0] * inner[1];
        let (dims, strides) =
            (vec![size, inner[0], inner[1]], vec![step.unwrap_or(packed), steps[0], steps[1]]);
        match tensor.is_virtual {
            true => (dims, vec![packed, inner[1], 1]),
            false => (dims, strides),
        }
    });
    // Batches have no index of their own along the one dimension.
    let moved = counting(operations, |axis| (axis >= rank - 2).then(|| axis + 3 - rank))?;
    Some((vec![(local, moved)], "matrices of all batches along one dimension, without a copy"))
}

/// Convolutions along one dimension: images of one row.
fn lines(sketch: &Sketch, operations: &[OpSpec]) -> Viewed {
    let mut moved = counting(operations, |axis| Some(if axis == 2 { 3 } else { axis }))?;
    let mut any = false;
    for op in &mut moved {
        if let Operation::ConvFprop(conv)
        | Operation::ConvDgrad(conv)
        | Operation::ConvWgrad(conv) = &mut op.operation
        {
            if conv.stride.len() != 1 {
                return None;
            }
            *conv = of_rows(conv);
            any = true;
        } else if !matches!(op.operation, Operation::Pointwise(_)) {
            return None;
        }
    }
    let uids = used(operations);
    if !any || uids.iter().any(|uid| sketch.dims(*uid).len() != 3) {
        return None;
    }
    let local = with_views(sketch, &uids, |tensor| {
        let ([n, c, l], [a, b, s]) = (&tensor.dims[..], &tensor.strides[..]) else {
            return (tensor.dims.clone(), tensor.strides.clone());
        };
        (vec![*n, *c, 1, *l], vec![*a, *b, l * s, *s])
    });
    Some((
        vec![(local, moved)],
        "a convolution along one dimension as that of images of one row, without a copy",
    ))
}

/// Returns the attributes of a convolution with a dimension of size 1 before its own.
fn of_rows(conv: &Convolution) -> Convolution {
    let before = |value: i64, list: &[i64]| [&[value], list].concat();
    Convolution {
        pre_padding: before(0, &conv.pre_padding),
        post_padding: before(0, &conv.post_padding),
        stride: before(1, &conv.stride),
        dilation: before(1, &conv.dilation),
        ..conv.clone()
    }
}
