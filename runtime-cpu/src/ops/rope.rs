//! Rotary position embedding.

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Rows before it in the whole sequence, evicted ones included: what causality and sliding windows go by.
    pub index: u32,
    /// What its channels are rotated by: time, row and column. All three are `index` in models without M-RoPE.
    pub axes: [u32; 3],
}

impl Position {
    /// Row `index` of a sequence that is rotated by its index.
    pub fn text(index: u32) -> Position {
        Position { index, axes: [index; 3] }
    }
}

/// Rotation angles per pair of channels, and the length of the rotated pair.
#[derive(Clone, Debug)]
pub struct Rope {
    kind: RopeKind,
    /// `[head_dim / 2]`
    inverse_frequency: Vec<f64>,
    /// `[head_dim / 2]` Which of the three numbers of a position turns the pair.
    axis: Vec<u8>,
    magnitude: f32,
}

/// Which channels form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// `(2i, 2i + 1)`: the `llama` architecture's files.
    Interleaved,
    /// `(i, i + d/2)`: rotate-half, as in `qwen2`.
    Half,
}

/// How a model was stretched to a longer context than its first training had.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Not at all. Llama 3.1's scaling is this with divisors of the frequencies (`rope_freqs`).
    #[default]
    None,
    /// Positions divided by `factor` (Chen et al. 2023, "Extending context window via positional interpolation").
    Linear {
        /// At least 1 in practice.
        factor: f32,
    },
    /// Slow pairs divided by `factor`, fast ones left alone, a ramp between (Peng et al. 2023, "YaRN").
    Yarn {
        /// New context over the original one.
        factor: f32,
        /// Positions of the first training.
        original_context: u32,
        /// Turns in the original context from which on a pair is left alone; published default 32.
        beta_fast: f32,
        /// Turns up to which a pair is divided; published default 1.
        beta_slow: f32,
        /// Length of the rotated pairs; published as `1 + ln(factor) / 10`.
        magnitude: f32,
    },
}

impl Rope {
    /// Base frequency `theta`, its scaling, and optional divisors of the frequencies, `[head_dim / 2]`.
    pub fn new(kind: RopeKind, head_dim: usize, theta: f32, scaling: RopeScaling, factors: Option<&[f32]>) -> Rope {
        let half = head_dim / 2;
        let frequency = |i: usize| {
            let f = f64::from(theta).powf(-2.0 * i as f64 / head_dim as f64);
            let f = f / factors.map_or(1.0, |v| f64::from(v[i]));
            f / scaling.divisor(i, head_dim, f64::from(theta))
        };
        let magnitude = match scaling {
            RopeScaling::Yarn { magnitude, .. } => magnitude,
            _ => 1.0,
        };
        Rope { kind, inverse_frequency: (0..half).map(frequency).collect(), axis: vec![0; half], magnitude }
    }

    /// For patches of a picture: the first half of the pairs turns with the row, the second with the column, both from the
    /// highest frequency down. `head_dim` is a multiple of 4.
    pub fn rows_and_columns(head_dim: usize, theta: f32) -> Rope {
        let mut rope = Rope::new(RopeKind::Half, head_dim / 2, theta, RopeScaling::None, None);
        let quarter = rope.inverse_frequency.len();
        rope.inverse_frequency.extend_from_within(..);
        rope.axis = vec![0; 2 * quarter];
        rope.with_sections([0, quarter, quarter])
    }

    /// M-RoPE (Qwen2-VL): the first `sections[0]` pairs turn with time, the next with the row, the rest with the column.
    ///
    /// The sections add up to `head_dim / 2`.
    pub fn with_sections(mut self, sections: [usize; 3]) -> Rope {
        let axes = sections.iter().zip(0..).flat_map(|(&n, axis)| std::iter::repeat_n(axis, n));
        self.axis.iter_mut().zip(axes).for_each(|(a, axis)| *a = axis);
        self
    }

    /// Radians per position of each pair, `[head_dim / 2]`.
    pub fn frequencies(&self) -> &[f64] {
        &self.inverse_frequency
    }

    /// Which channels form a pair.
    pub fn kind(&self) -> RopeKind {
        self.kind
    }

    /// Length of a rotated pair over its length before: 1 but for YaRN.
    pub fn magnitude(&self) -> f32 {
        self.magnitude
    }

    /// Cosines and sines of one position, `[head_dim / 2]` each, times the magnitude. Angles are f64, so far positions
    /// stay exact.
    pub fn angles(&self, axes: [u32; 3], cos: &mut [f32], sin: &mut [f32]) {
        for (((c, s), f), &axis) in cos.iter_mut().zip(sin).zip(&self.inverse_frequency).zip(&self.axis) {
            let angle = f64::from(axes[usize::from(axis)]) * f;
            *c = angle.cos() as f32 * self.magnitude;
            *s = angle.sin() as f32 * self.magnitude;
        }
    }

    /// Rotates the heads of one token, `[n_heads][head_dim]`.
    pub fn rotate(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let half = cos.len();
        for head in x.chunks_exact_mut(2 * half) {
            match self.kind {
                RopeKind::Interleaved => {
                    for ((pair, &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                        let [a, b] = *pair;
                        *pair = [a * c - b * s, a * s + b * c];
                    }
                }
                RopeKind::Half => {
                    let (low, high) = head.split_at_mut(half);
                    for (((a, b), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                    }
                }
            }
        }
    }
}

impl RopeScaling {
    /// What the frequency of pair `i` is divided by.
    fn divisor(self, i: usize, head_dim: usize, theta: f64) -> f64 {
        match self {
            RopeScaling::None => 1.0,
            RopeScaling::Linear { factor } => f64::from(factor),
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
                // The pair that makes `turns` turns in the original context.
                let pair = |turns: f32| {
                    let wave = f64::from(original_context) / (f64::from(turns) * std::f64::consts::TAU);
                    head_dim as f64 * wave.ln() / (2.0 * theta.ln())
                };
                let low = pair(beta_fast).floor().max(0.0);
                let high = pair(beta_slow).ceil().min(head_dim as f64 - 1.0);
                let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                1.0 / (ramp / f64::from(factor) + 1.0 - ramp)
            }
        }
    }
}
