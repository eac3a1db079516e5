//! CPU runtime of ecokv.
