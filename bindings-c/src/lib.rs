//! C ABI of ecokv.
