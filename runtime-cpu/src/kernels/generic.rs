//! Element-wise kernels written once over fixed arrays; each instruction-set file inlines them into its own
//! `#[target_feature]` functions, where they are compiled to that set's vectors.

/// Independent sums that hide the latency of an addition.
const LANES: usize = 16;

#[inline(always)]
fn madd<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` to about 1e-7 relative. Below -87.3 the result is 0, above 88.3 it saturates near the largest float; NaN stays.
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Cephes' reduction: x = n ln 2 + r with |r| <= ln 2 / 2, then a polynomial in r.
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let c = x.clamp(-87.3, 88.3);
    let shifted = madd::<FMA>(c, std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = madd::<FMA>(n, -0.693_359_4, c);
    let r = madd::<FMA>(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4_f32;
    p = madd::<FMA>(p, r, 1.398_2e-3);
    p = madd::<FMA>(p, r, 8.333_452e-3);
    p = madd::<FMA>(p, r, 4.166_579_6e-2);
    p = madd::<FMA>(p, r, 1.666_666_5e-1);
    p = madd::<FMA>(p, r, 0.5);
    let y = madd::<FMA>(p * r, r, r) + 1.0;
    // The low bits of `shifted` hold n.
    let pow2 = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let e = y * pow2;
    if x < -87.3 { 0.0 } else { e }
}

#[inline(always)]
pub(super) fn rms_norm<const FMA: bool>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mut sum = [0.0; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for c in chunks {
        for i in 0..LANES {
            sum[i] = madd::<FMA>(c[i], c[i], sum[i]);
        }
    }
    let mut s = tree(sum);
    for &t in tail {
        s += t * t;
    }
    let scale = 1.0 / (s / x.len() as f32 + eps).sqrt();
    for ((o, &v), &w) in out.iter_mut().zip(x).zip(weight) {
        *o = v * scale * w;
    }
}

/// Moments in f64.
#[inline(always)]
pub(super) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f64;
    let mean = deviations::<false>(x, 0.0) / n;
    let scale = 1.0 / (deviations::<true>(x, mean) / n + f64::from(eps)).sqrt();
    for (o, ((&x, &w), &b)) in out.iter_mut().zip(x.iter().zip(weight).zip(bias)) {
        *o = ((f64::from(x) - mean) * scale) as f32 * w + b;
    }
}

/// Sum of what `x` is above `mean`, or of the squares of that.
#[inline(always)]
fn deviations<const SQUARED: bool>(x: &[f32], mean: f64) -> f64 {
    let of = |v: f32| {
        let d = f64::from(v) - mean;
        if SQUARED { d * d } else { d }
    };
    let mut sum = [0.0; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for c in chunks {
        for i in 0..LANES {
            sum[i] += of(c[i]);
        }
    }
    sum.iter().sum::<f64>() + tail.iter().map(|&v| of(v)).sum::<f64>()
}

#[inline(always)]
pub(super) fn silu_mul<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp::<FMA>(-*g)) * u;
    }
}

#[inline(always)]
pub(super) fn sigmoid_gate<const FMA: bool>(x: &mut [f32], a: f32) {
    for v in x {
        *v /= 1.0 + exp::<FMA>(-a * *v);
    }
}

/// `(1 + tanh y) / 2` is `sigmoid(2 y)`.
#[inline(always)]
fn gelu<const FMA: bool>(x: f32) -> f32 {
    x / (1.0 + exp::<FMA>(-1.595_769_2 * madd::<FMA>(0.044_715 * x * x, x, x)))
}

#[inline(always)]
pub(super) fn gelu_tanh<const FMA: bool>(x: &mut [f32]) {
    for v in x {
        *v = gelu::<FMA>(*v);
    }
}

#[inline(always)]
pub(super) fn gelu_mul<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = gelu::<FMA>(*g) * u;
    }
}

#[inline(always)]
pub(super) fn add(y: &mut [f32], x: &[f32]) {
    for (a, &b) in y.iter_mut().zip(x) {
        *a += b;
    }
}

#[inline(always)]
fn tree(mut s: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            s[i] += s[i + width];
        }
        width /= 2;
    }
    s[0]
}

/// The functions of this file, compiled for an instruction set.
macro_rules! elementwise {
    ($features:literal) => {
        elementwise!(generic, $features,
            rms_norm::<true>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]),
            layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]),
            silu_mul::<true>(gate: &mut [f32], up: &[f32]),
            sigmoid_gate::<true>(x: &mut [f32], a: f32),
            gelu_tanh::<true>(x: &mut [f32]),
            gelu_mul::<true>(gate: &mut [f32], up: &[f32]),
            add(y: &mut [f32], x: &[f32]),
        );
    };
    ($of:ident, $features:literal, $($name:ident $(::<$fma:literal>)? ($($arg:ident: $ty:ty),*),)*) => {
        $(
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name($($arg: $ty),*) {
                $of::$name$(::<$fma>)?($($arg),*);
            }
        )*
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use elementwise;
