//! How the layers of a model share its budget, in exact token counts.

use crate::Error;

/// How the layers share a model's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerBudget {
    /// The same in every layer.
    Uniform,
    /// A straight line from many entries at the bottom to few at the top (PyramidKV), rounded so that the total is
    /// exactly that of [`LayerBudget::Uniform`]. `beta` is the steepness, 1 being flat; published default 20.
    Pyramid {
        /// Steepness, at least 1.
        beta: u32,
    },
    /// PyramidKV as its authors' code computes it: integer steps, whose total exceeds the budget by up to 15 %, and a
    /// flat line for prompts shorter than twice the budget. For comparisons with published numbers only.
    PyramidReference {
        /// Steepness, at least 1.
        beta: u32,
    },
}

impl LayerBudget {
    /// Writes the budget of every layer, `[n_layers]`, in entries per KV head with the window included.
    ///
    /// `budget` is the mean over the layers, `window` the entries protected at the end (it stays out of the pyramid),
    /// `seq_len` the entries a layer holds now. The sum is `n_layers * budget` for all but `PyramidReference`.
    pub fn allocate(&self, budget: u32, window: u32, seq_len: u32, out: &mut [u32]) -> Result<(), Error> {
        let window = window.min(budget.saturating_sub(1));
        let (base, room) = (budget.saturating_sub(window), seq_len.saturating_sub(window));
        match *self {
            Self::Pyramid { beta: 0 } | Self::PyramidReference { beta: 0 } => {
                return Err(Error::Config("beta must be at least 1"));
            }
            Self::Pyramid { beta } if seq_len > budget => exact_line(base, window, room, beta, out)?,
            Self::PyramidReference { beta } if seq_len >= base.saturating_mul(2) && seq_len >= budget => {
                floored_line(base, window, room, beta, out);
            }
            _ => out.fill(budget),
        }
        Ok(())
    }
}

/// `cap(l) = max - l (max - min) / (L - 1)` with `min = base / beta`, in whole numbers by rounding the running sum.
fn exact_line(base: u32, window: u32, room: u32, beta: u32, out: &mut [u32]) -> Result<(), Error> {
    let overflow = Error::Overflow("pyramid budget");
    let n = u128::try_from(out.len()).map_err(|_| overflow)?;
    let Some(steps) = n.checked_sub(1).filter(|&s| s > 0) else {
        out.fill(base.saturating_add(window));
        return Ok(());
    };
    let (base, room, beta) = (u128::from(base), u128::from(room), u128::from(beta));
    // Everything times beta, so that `min` is whole.
    let total = base.saturating_mul(beta).saturating_mul(2);
    let (mut min, mut max) = (base, total.saturating_sub(base));
    if max >= room.saturating_mul(beta) {
        max = room.saturating_mul(beta);
        min = total.saturating_sub(max);
    }
    // Sum of the first l layers, times 2 beta steps: 2 l max steps - (max - min) l (l - 1), rounded to a whole entry.
    let unit = beta.saturating_mul(steps).saturating_mul(2);
    let sum = |l: u128| -> Option<u128> {
        let line = l.checked_mul(2)?.checked_mul(max)?.checked_mul(steps)?;
        let fall = max.checked_sub(min)?.checked_mul(l)?.checked_mul(l.saturating_sub(1))?;
        line.checked_sub(fall)?.checked_add(unit / 2)?.checked_div(unit)
    };
    sum(n).ok_or(overflow)?; // the largest of them: the others cannot fail once it succeeded
    let mut before = 0;
    for (layer, out) in (1u128..).zip(out.iter_mut()) {
        let after = sum(layer).unwrap_or(before);
        *out = u32::try_from(after.saturating_sub(before)).unwrap_or(u32::MAX).saturating_add(window);
        before = after;
    }
    Ok(())
}

fn floored_line(base: u32, window: u32, room: u32, beta: u32, out: &mut [u32]) {
    let total = base.saturating_mul(2);
    let mut min = base.checked_div(beta).unwrap_or(0);
    let mut max = total.saturating_sub(min);
    if max >= room {
        max = room;
        min = total.saturating_sub(max);
    }
    let steps = u32::try_from(out.len()).unwrap_or(u32::MAX).saturating_sub(1);
    let step = max.saturating_sub(min).checked_div(steps).unwrap_or(0);
    if steps == 0 {
        max = base;
    }
    for (layer, out) in (0u32..).zip(out.iter_mut()) {
        *out = max.saturating_sub(layer.saturating_mul(step)).saturating_add(window);
    }
}
