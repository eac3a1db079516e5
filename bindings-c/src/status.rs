//! The status numbers.

use std::ffi::CStr;

use ecokv_core::Error;

/// Outcome of a call: 0 to 99 success and misuse of the interface, 100 to 199 choosing cache entries.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

/// Done.
pub const ECOKV_OK: u32 = 0;
/// A slice has the wrong number of elements.
pub const ECOKV_LENGTH_MISMATCH: u32 = 100;
/// The workspace is too small.
pub const ECOKV_WORKSPACE_TOO_SMALL: u32 = 101;
/// The protected entries do not fit the budget.
pub const ECOKV_BUDGET_TOO_SMALL: u32 = 102;
/// The policy reads something that was not recorded.
pub const ECOKV_MISSING_OBSERVATION: u32 = 103;
/// A head's rows lie outside the layer or overlap another head's.
pub const ECOKV_HEAD_RANGE: u32 = 104;
/// A parameter has a value that means nothing.
pub const ECOKV_CONFIG: u32 = 105;
/// A size or a count does not fit its type.
pub const ECOKV_OVERFLOW: u32 = 106;
/// An error of choosing entries that is newer than this interface.
pub const ECOKV_EVICT_OTHER: u32 = 199;

impl Status {
    /// What the number means.
    pub const fn text(self) -> &'static CStr {
        match self.0 {
            ECOKV_OK => c"done",
            ECOKV_LENGTH_MISMATCH => c"a slice has the wrong number of elements",
            ECOKV_WORKSPACE_TOO_SMALL => c"the workspace is too small",
            ECOKV_BUDGET_TOO_SMALL => c"the protected entries do not fit the budget",
            ECOKV_MISSING_OBSERVATION => c"the policy reads something that was not recorded",
            ECOKV_HEAD_RANGE => c"a head's rows lie outside the layer or overlap another head's",
            ECOKV_CONFIG => c"a parameter has a value that means nothing",
            ECOKV_OVERFLOW => c"a size or a count does not fit its type",
            ECOKV_EVICT_OTHER => c"entries could not be chosen",
            _ => c"not a status of this library",
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status(match error {
            Error::LengthMismatch { .. } => ECOKV_LENGTH_MISMATCH,
            Error::WorkspaceTooSmall { .. } => ECOKV_WORKSPACE_TOO_SMALL,
            Error::BudgetTooSmall { .. } => ECOKV_BUDGET_TOO_SMALL,
            Error::MissingObservation(_) => ECOKV_MISSING_OBSERVATION,
            Error::HeadRange { .. } => ECOKV_HEAD_RANGE,
            Error::Config(_) => ECOKV_CONFIG,
            Error::Overflow(_) => ECOKV_OVERFLOW,
            _ => ECOKV_EVICT_OTHER,
        })
    }
}
