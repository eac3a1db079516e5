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

#[cfg(all(target_arch = "arm", target_os = "none", target_abi = "eabihf", not(target_has_atomic = "64")))]
#[inline(always)]
#[allow(unsafe_code)]
fn instruction(a: f32, b: f32, mut c: f32) -> f32 {
    // SAFETY: every unit of this kind has VFMA, which touches its three registers only.
    unsafe {
        core::arch::asm!("vfma.f32 {c}, {a}, {b}", c = inout(sreg) c, a = in(sreg) a, b = in(sreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    c
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
    let even_and_inexact = u64::from(lost > 0.0 || lost < 0.0) & !bits & 1;
    let odd = if outward { bits.wrapping_add(even_and_inexact) } else { bits.wrapping_sub(even_and_inexact) };
    f64::from_bits(odd) as f32
}
