//! Exact top-k over integer keys. A radix cut instead of a sort: no panic path, no memory, linear time.

/// The order of scores as an unsigned number: higher score, higher key. NaN ranks below every number; among NaNs the
/// newer entry ranks higher, so that a head without scores falls back to its most recent entries. Never `u32::MAX`.
pub(crate) fn rank(score: f32, index: usize) -> u32 {
    if score.is_nan() {
        const TOP_NAN: u32 = 0x007f_fffe; // one below the key of -inf
        return u32::try_from(index).unwrap_or(TOP_NAN).min(TOP_NAN);
    }
    order(score)
}

/// [`rank`] of a number.
pub(crate) fn order(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // -0 and 0 tie
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// The key of a protected entry, above all scores.
pub(crate) const PROTECTED: u32 = u32::MAX;

/// The top `k` are the keys above `key`, and `ties` of those equal to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub key: u32,
    pub ties: usize,
}

impl Cut {
    /// The cut below the `k` largest of at least `k` keys.
    pub fn top(keys: impl Iterator<Item = u32> + Clone, k: usize) -> Self {
        let (mut key, mut mask, mut left) = (0u32, 0u32, k);
        if k == 0 {
            return Self { key: u32::MAX, ties: 0 };
        }
        for shift in [24u32, 16, 8, 0] {
            let mut counts = [0usize; 256];
            for x in keys.clone().filter(|x| x & mask == key) {
                if let Some(c) = counts.get_mut((x >> shift & 0xff) as usize) {
                    *c = c.saturating_add(1);
                }
            }
            let mut digit = 0u32;
            for (value, &count) in (0..256u32).zip(&counts).rev() {
                digit = value;
                if count >= left {
                    break;
                }
                left = left.saturating_sub(count);
            }
            key |= digit << shift;
            mask |= 0xff << shift;
        }
        Self { key, ties: left }
    }

    /// Whether the next key in order is in; equal keys are taken in the order they come.
    pub fn take(&mut self, key: u32) -> bool {
        if key == self.key && self.ties > 0 {
            self.ties = self.ties.saturating_sub(1);
            return true;
        }
        key > self.key
    }
}
