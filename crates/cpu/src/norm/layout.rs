//! The lanes of a normalization: the elements that share a mean and a deviation, as segments that are dense in
//! memory.

use std::ops::Range;

use super::memory::BLOCK;

/// The lanes of a tensor whose elements are dense, in row-major order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) lanes: usize,
    /// The segments of a lane.
    pub(super) segments: usize,
    /// The elements of a segment.
    pub(super) len: usize,
    lane_step: usize,
    segment_step: usize,
    /// The lanes until weights repeat.
    pub(super) groups: usize,
    /// Whether each element of a lane has a weight of its own. If not, each segment has one.
    pub(super) per_element: bool,
    /// The weights from a lane to the next, and from a segment to the next.
    weight_steps: (usize, usize),
}

/// A block of a lane: the position of its first element in the tensor and in the lane, its length, and its
/// segment.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) start: usize,
    pub(super) in_lane: usize,
    pub(super) len: usize,
    pub(super) segment: usize,
}

impl Layout {
    /// Lanes one after another, with a weight for each element; lane `i` and lane `i + groups` have the same.
    pub(super) fn rows(lanes: usize, len: usize, groups: usize) -> Layout {
        Layout {
            lanes,
            segments: 1,
            len,
            lane_step: len,
            segment_step: len,
            groups,
            per_element: true,
            weight_steps: (len, 0),
        }
    }

    /// The groups of a batch of examples, each of `channels` channels of `len` elements.
    pub(super) fn groups(lanes: usize, groups: usize, channels: usize, len: usize) -> Layout {
        Layout {
            lanes,
            segments: channels,
            len,
            lane_step: channels * len,
            segment_step: len,
            groups,
            per_element: false,
            weight_steps: (channels, 1),
        }
    }

    /// The channels of `examples` examples, each of `channels` channels of `len` elements.
    pub(super) fn channels(examples: usize, channels: usize, len: usize) -> Layout {
        Layout {
            lanes: channels,
            segments: examples,
            len,
            lane_step: len,
            segment_step: channels * len,
            groups: channels,
            per_element: false,
            weight_steps: (1, 0),
        }
    }

    /// The elements of a lane.
    pub(super) fn lane_len(&self) -> usize {
        self.segments * self.len
    }

    /// All elements.
    pub(super) fn elements(&self) -> usize {
        self.lanes * self.lane_len()
    }

    /// The number of weights.
    pub(super) fn weights(&self) -> usize {
        match self.per_element {
            true => self.groups * self.len,
            false => self.weight_at(self.groups - 1, self.segments - 1) + 1,
        }
    }

    /// The position of the weight of a segment, or of the first element of a lane.
    #[inline(always)]
    pub(super) fn weight_at(&self, lane: usize, segment: usize) -> usize {
        let (by_lane, by_segment) = self.weight_steps;
        let lane = if self.groups == self.lanes { lane } else { lane % self.groups };
        lane * by_lane + segment * by_segment
    }

    /// The blocks of a segment.
    #[inline(always)]
    fn blocks_of_segment(&self) -> usize {
        self.len.div_ceil(BLOCK)
    }

    /// The blocks of a lane.
    pub(super) fn blocks(&self) -> usize {
        self.segments * self.blocks_of_segment()
    }

    /// Returns the blocks of a lane with these numbers.
    #[inline(always)]
    pub(super) fn blocks_of(&self, lane: usize, numbers: Range<usize>) -> Blocks {
        let of_segment = self.blocks_of_segment();
        let (segment, at) = match of_segment {
            1 => (numbers.start, 0),
            n => (numbers.start / n, numbers.start % n),
        };
        let first = lane * self.lane_step + segment * self.segment_step;
        let (len, step) = (self.len, self.segment_step);
        Blocks { first, len, step, of_segment, segment, at, left: numbers.len() }
    }
}

/// The blocks of a lane, in order.
pub(super) struct Blocks {
    /// The position of the segment's first element.
    first: usize,
    len: usize,
    /// The distance from a segment to the next.
    step: usize,
    of_segment: usize,
    segment: usize,
    /// The block's number in its segment.
    at: usize,
    left: usize,
}

impl Iterator for Blocks {
    type Item = Block;

    #[inline(always)]
    fn next(&mut self) -> Option<Block> {
        if self.left == 0 {
            return None;
        }
        let in_lane = self.at * BLOCK;
        let len = BLOCK.min(self.len - in_lane);
        let block = Block { start: self.first + in_lane, in_lane, len, segment: self.segment };
        self.left -= 1;
        self.at += 1;
        if self.at == self.of_segment {
            (self.at, self.segment, self.first) = (0, self.segment + 1, self.first + self.step);
        }
        Some(block)
    }
}
