//! Why a call was refused.

use core::fmt;

/// Why a call was refused. Nothing was written to any output when one of these is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A slice has the wrong number of elements.
    LengthMismatch {
        /// The slice.
        what: &'static str,
        /// Elements it must have.
        need: usize,
        /// Elements it has.
        got: usize,
    },
    /// A workspace slice is shorter than [`Policy::workspace_len`](crate::Policy::workspace_len) says.
    WorkspaceTooSmall {
        /// The slice: `f32s` or `u32s`.
        what: &'static str,
        /// Elements it must have.
        need: usize,
        /// Elements it has.
        got: usize,
    },
    /// The protected entries do not fit the budget (a budget must also hold at least one entry).
    BudgetTooSmall {
        /// Entries that must be kept in the fullest head.
        protected: u32,
        /// Entries allowed per KV head.
        budget: u32,
    },
    /// The policy reads something the view does not carry.
    MissingObservation(&'static str),
    /// A head's rows lie outside the layer, or overlap the rows of the head before it.
    HeadRange {
        /// KV head.
        head: u32,
        /// Its first row.
        start: u32,
        /// Its number of rows.
        len: u32,
        /// Rows of the layer.
        rows: usize,
    },
    /// A parameter has a value that means nothing.
    Config(&'static str),
    /// A size or a count does not fit its type.
    Overflow(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::LengthMismatch { what, need, got } => write!(f, "{what} has {got} elements, needs {need}"),
            Self::WorkspaceTooSmall { what, need, got } => {
                write!(f, "workspace {what} has {got} elements, needs {need}")
            }
            Self::BudgetTooSmall { protected, budget } => {
                write!(f, "a budget of {budget} entries per head cannot hold {protected} protected entries")
            }
            Self::MissingObservation(what) => write!(f, "the policy needs {what}, which the view does not carry"),
            Self::HeadRange { head, start, len, rows } => {
                write!(f, "KV head {head} claims {len} rows from row {start} of a layer with {rows} rows")
            }
            Self::Config(what) => write!(f, "bad parameter: {what}"),
            Self::Overflow(what) => write!(f, "{what} is too large"),
        }
    }
}

impl core::error::Error for Error {}
