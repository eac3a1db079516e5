//! Scoring core of ecokv.
#![no_std]
