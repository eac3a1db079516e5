//! Nothing: the package exists for its bench.
