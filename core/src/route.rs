//! Routes: another method in every layer, read from a small text.
//!
//! ```text
//! ecokv-route 1
//! # what it was made for; both must fit the model
//! layers 3
//! heads 8
//! # layer, method, and optionally its budget in entries per KV head
//! 0 streaming
//! 1 ecokv 96
//! 2 snapkv 160
//! ```
//!
//! Layers come in order, all of them. Empty lines and lines that begin with `#` are skipped.

use core::fmt;

use crate::{Method, methods};

/// What one layer does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteLayer {
    /// Its method; the method's layer budget is not used.
    pub method: &'static Method,
    /// Its budget in entries per KV head, if the route sets one.
    pub budget: Option<u32>,
}

/// Where and why a route was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteError {
    /// Line, from 1; one past the last if something is missing.
    pub line: u32,
    /// What is wrong with it.
    pub kind: RouteErrorKind,
}

/// Why a route was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteErrorKind {
    /// Not a route of a version this library reads.
    Version,
    /// A line of another form was expected.
    Form,
    /// The route is for a model with another number of layers or KV heads.
    OtherModel {
        /// What the model has.
        need: u32,
        /// What the route says.
        got: u32,
    },
    /// The layers are not in order, or not as many as announced.
    Order,
    /// There is no such method.
    UnknownMethod,
    /// A budget of 0.
    Budget,
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route, line {}: ", self.line)?;
        match self.kind {
            RouteErrorKind::Version => write!(f, "not an \"ecokv-route 1\""),
            RouteErrorKind::Form => write!(f, "not of the expected form"),
            RouteErrorKind::OtherModel { need, got } => write!(f, "made for a model with {got}, this one has {need}"),
            RouteErrorKind::Order => write!(f, "every layer must be named once, in order"),
            RouteErrorKind::UnknownMethod => write!(f, "unknown method"),
            RouteErrorKind::Budget => write!(f, "a budget must be at least 1"),
        }
    }
}

impl core::error::Error for RouteError {}

/// Reads a route for a model with `out.len()` layers and `n_kv_heads` KV heads. Nothing is written on an error.
///
/// # Errors
/// [`RouteError`] with the line.
pub fn parse_route(text: &str, n_kv_heads: u32, out: &mut [RouteLayer]) -> Result<(), RouteError> {
    let n_layers = u32::try_from(out.len()).unwrap_or(u32::MAX);
    read(text, n_layers, n_kv_heads, |_| ())?;
    let mut slots = out.iter_mut();
    read(text, n_layers, n_kv_heads, |layer| {
        if let Some(slot) = slots.next() {
            *slot = layer;
        }
    })
}

fn read(text: &str, n_layers: u32, n_kv_heads: u32, mut each: impl FnMut(RouteLayer)) -> Result<(), RouteError> {
    let all = || trimmed_lines(text.trim_end());
    let mut lines = (1u32..).zip(all()).filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
    let end = u32::try_from(all().count()).unwrap_or(u32::MAX).saturating_add(1);
    let refuse = |line, kind| Err(RouteError { line, kind });
    let (line, first) = lines.next().unwrap_or((end, ""));
    if !first.split_whitespace().eq(["ecokv-route", "1"]) {
        return refuse(line, RouteErrorKind::Version);
    }
    for (name, need) in [("layers", n_layers), ("heads", n_kv_heads)] {
        let (line, text) = lines.next().unwrap_or((end, ""));
        let mut words = text.split_whitespace();
        match (words.next(), words.next().map(str::parse::<u32>), words.next()) {
            (Some(word), Some(Ok(got)), None) if word == name => {
                if got != need {
                    return refuse(line, RouteErrorKind::OtherModel { need, got });
                }
            }
            _ => return refuse(line, RouteErrorKind::Form),
        }
    }
    for layer in 0..n_layers {
        let Some((line, text)) = lines.next() else { return refuse(end, RouteErrorKind::Order) };
        let mut words = text.split_whitespace();
        let (Some(number), Some(method)) = (words.next(), words.next()) else {
            return refuse(line, RouteErrorKind::Form);
        };
        if number.parse() != Ok(layer) {
            return refuse(line, RouteErrorKind::Order);
        }
        let Some(method) = methods::by_name(method) else { return refuse(line, RouteErrorKind::UnknownMethod) };
        let budget = match words.next().map(str::parse::<u32>) {
            None => None,
            Some(Ok(0)) => return refuse(line, RouteErrorKind::Budget),
            Some(Ok(budget)) => Some(budget),
            Some(Err(_)) => return refuse(line, RouteErrorKind::Form),
        };
        if words.next().is_some() {
            return refuse(line, RouteErrorKind::Form);
        }
        each(RouteLayer { method, budget });
    }
    match lines.next() {
        Some((line, _)) => refuse(line, RouteErrorKind::Order),
        None => Ok(()),
    }
}

/// As `str::lines` and `str::split`, which keep a panic path.
fn trimmed_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    core::iter::from_fn(move || {
        let text = rest?;
        let (line, after) = text.split_once('\n').map_or((text, None), |(line, after)| (line, Some(after)));
        rest = after;
        Some(line.trim())
    })
}
