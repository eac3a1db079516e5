//! `a b + c` rounded once, for processors and instruction sets that may not have it.

/// `a b + c` rounded once.
#[inline(always)]
#[allow(unreachable_code)]
pub fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    // The floating-point unit of a Cortex-M has the instruction, but not double precision. Of the bare targets with such
    // a unit, those without 64-bit atomics are Cortex-M.
    #[cfg(all(target_arch = "arm", target_os = "none", target_abi = "eabihf", not(target_has_atomic = "64")))]
    return instruction(a, b, c);
    wide(a, b, c)
}

/// A function of its own because the compiler hands no register of this unit to inline assembly.
#[cfg(all(target_arch = "arm", target_os = "none", target_abi = "eabihf", not(target_has_atomic = "64")))]
#[allow(unsafe_code)] // naked: takes a, b, c from s0, s1, s2 and returns in s0, as this calling convention has it
#[unsafe(naked)]
extern "C" fn instruction(a: f32, b: f32, c: f32) -> f32 {
    core::arch::naked_asm!(".fpu fpv4-sp-d16", "vfma.f32 s2, s0, s1", "vmov.f32 s0, s2", "bx lr")
}

/// By arithmetic in double precision: the product is exact there, and a sum rounded *to odd* keeps the trace of what it
/// lost that the last rounding needs.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
pub fn wide(a: f32, b: f32, c: f32) -> f32 {
    let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = p + c;
    // What the sum lost, exactly (Knuth's TwoSum); NaN if the sum is not finite.
    let c_there = sum - p;
    let lost = (p - (sum - c_there)) + (c - c_there);
    // An inexact sum is one of the two numbers around the true one. Of these take the odd one.
    let bits = sum.to_bits();
    let outward = (lost > 0.0) == (sum > 0.0);
    let even_and_inexact = u64::from(lost.abs() > 0.0) & !bits & 1;
    let odd = if outward { bits.wrapping_add(even_and_inexact) } else { bits.wrapping_sub(even_and_inexact) };
    f64::from_bits(odd) as f32
}
