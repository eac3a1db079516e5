//! Offline tables of heads, turned into entries per head. Whole entries go to the largest remainders.

use crate::Error;
use crate::math::share;
use crate::select::Cut;

/// Turns a profile of head scores into entries per head (SparseMM).
///
/// `scores` and `out` are `[n_layers][n_kv_heads]`, or any other set of heads that shares a budget. `budget` is the mean
/// number of entries per head, window included. Every head gets the window and `even` of the rest; what remains is
/// divided in proportion to the scores. The total is exactly `budget` times the number of heads.
///
/// # Errors
/// [`Error::LengthMismatch`]; [`Error::Config`] for a share outside 0 to 1, or scores that are negative, not finite, or
/// all 0; [`Error::BudgetTooSmall`] if the window exceeds the budget.
pub fn from_profile(scores: &[f32], budget: u32, window: u32, even: f32, out: &mut [u32]) -> Result<(), Error> {
    same("out", scores.len(), out.len())?;
    if !(0.0..=1.0).contains(&even) {
        return Err(Error::Config("the even share must lie between 0 and 1"));
    }
    let sum = scores.iter().map(|&s| f64::from(s)).sum::<f64>();
    if !scores.iter().all(|&s| s >= 0.0) || !sum.is_finite() || sum <= 0.0 {
        return Err(Error::Config("head scores must be finite, not negative, and not all 0"));
    }
    let Some(base) = budget.checked_sub(window) else {
        return Err(Error::BudgetTooSmall { protected: window, budget });
    };
    let even = share(base, even);
    let heads = u64::try_from(out.len()).map_err(|_| Error::Overflow("number of heads"))?;
    let rest = u64::from(base.saturating_sub(even)).saturating_mul(heads);
    share_out(rest, scores.iter().map(|&s| wide(rest) * (f64::from(s) / sum)), out);
    out.iter_mut().for_each(|n| *n = n.saturating_add(even).saturating_add(window));
    Ok(())
}

/// Turns the shares of a sequence that heads keep into entries per head (HeadKV, DuoAttention, LU-KV): `rate * seq_len`,
/// rounded so that the total is that of all rates. `rates` and `out` as in [`from_profile`].
///
/// # Errors
/// [`Error::LengthMismatch`]; [`Error::Config`] for a rate outside 0 to 1.
pub fn from_rates(rates: &[f32], seq_len: u32, out: &mut [u32]) -> Result<(), Error> {
    same("out", rates.len(), out.len())?;
    if !rates.iter().all(|r| (0.0..=1.0).contains(r)) {
        return Err(Error::Config("rates must lie between 0 and 1"));
    }
    let quotas = rates.iter().map(|&r| f64::from(r) * f64::from(seq_len));
    share_out(whole(libm::round(quotas.clone().sum())), quotas, out);
    Ok(())
}

/// Averages a table of query heads, `[..][n_kv_heads][group]`, over the groups: `[..][n_kv_heads]`.
///
/// # Errors
/// [`Error::LengthMismatch`]; [`Error::Config`] for a group of 0.
pub fn per_kv_head(table: &[f32], group: usize, out: &mut [f32]) -> Result<(), Error> {
    if group == 0 {
        return Err(Error::Config("a group needs at least one head"));
    }
    same("table of query heads", out.len().checked_mul(group).ok_or(Error::Overflow("number of heads"))?, table.len())?;
    for (out, heads) in out.iter_mut().zip(table.chunks_exact(group)) {
        *out = heads.iter().sum::<f32>() / crate::math::float(group);
    }
    Ok(())
}

/// Rounds the quotas down, then the largest remainders up until the sum is `total`, the earlier of equals first.
fn share_out(total: u64, quotas: impl Iterator<Item = f64> + Clone, out: &mut [u32]) {
    let mut given = 0u64;
    for (out, quota) in out.iter_mut().zip(quotas.clone()) {
        *out = u32::try_from(whole(quota)).unwrap_or(u32::MAX);
        given = given.saturating_add(u64::from(*out));
    }
    let left = usize::try_from(total.saturating_sub(given)).unwrap_or(usize::MAX).min(out.len());
    let mut cut = Cut::top(quotas.clone().map(remainder), left);
    for (out, quota) in out.iter_mut().zip(quotas) {
        if cut.take(remainder(quota)) {
            *out = out.saturating_add(1);
        }
    }
}

/// The fraction in units of `2^-32`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn remainder(x: f64) -> u32 {
    ((x - libm::floor(x)) * 4_294_967_296.0) as u32
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(x: f64) -> u64 {
    x as u64
}

#[allow(clippy::cast_precision_loss)]
fn wide(x: u64) -> f64 {
    x as f64
}

fn same(what: &'static str, need: usize, got: usize) -> Result<(), Error> {
    if need == got { Ok(()) } else { Err(Error::LengthMismatch { what, need, got }) }
}
