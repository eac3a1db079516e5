//! How the two weigh.

/// How importance `I` and diversity `D` become one score. Unless said otherwise, `D` is brought to the mean of the
/// attention term; an importance that is not attention is min-max scaled over the candidates and takes its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    /// `I`.
    Importance,
    /// `D`, as measured.
    Diversity,
    /// `(1 - w) I + w D`.
    Weight(Depth),
    /// `(1 - w) I + w D`, both as measured.
    Raw(Depth),
    /// `(1 - rho) I + rho D`, `rho` being how much the keys of the head repeat each other:
    /// `clamp(alpha rho_e + beta rho_c, 0, 1)` with the geometry's weights, where `rho_c` is the mean cosine over pairs
    /// of keys and `rho_e` the geometry's [`Redundancy`](crate::Redundancy).
    HeadRedundancy,
    /// `D` where `rho` reaches the threshold, `I` elsewhere.
    HardRedundancy {
        /// Least `rho` of a head that goes by diversity.
        threshold: f32,
    },
    /// `(1 - w) I + w D`, where `w` and `1 - w` are the softmax of `rho / diversity` and `(1 - rho) / importance`, two
    /// temperatures above 0: near 0 a hard choice at `rho = diversity / (diversity + importance)`, far from it the mean.
    SoftRedundancy {
        /// Temperature of diversity.
        diversity: f32,
        /// Temperature of importance.
        importance: f32,
    },
    /// `(1 - w) I + w D`, `w` of each head from [`Observation::head_weights`](crate::Observation::head_weights).
    HeadTable,
    /// `(attention + value term + D) / 3`: MixKV without head-wise weights.
    Thirds,
}

/// A number that may depend on the layer; `x = layer / (n_layers - 1)`, 0 in a model of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Depth {
    /// The same in every layer.
    Constant(f32),
    /// From `first` at the bottom to `last` at the top.
    Linear {
        /// Value in the first layer.
        first: f32,
        /// Value in the last layer.
        last: f32,
    },
    /// One value for each third of the layers, bottom first.
    ThreeSegment([f32; 3]),
    /// `c0 + c1 u + c2 u^2` with `u = 2 x - 1`.
    Quadratic([f32; 3]),
}

impl Depth {
    /// The quadratic with these values in the first layer, the middle and the last layer.
    pub const fn quadratic_through(first: f32, middle: f32, last: f32) -> Self {
        Self::Quadratic([middle, (last - first) / 2.0, (last + first) / 2.0 - middle])
    }

    /// The value in `layer` of a model with `n_layers`.
    #[allow(clippy::cast_precision_loss)]
    pub fn at(self, layer: u32, n_layers: u32) -> f32 {
        let last_layer = n_layers.saturating_sub(1);
        let x = if last_layer == 0 { 0.0 } else { layer as f32 / last_layer as f32 };
        match self {
            Self::Constant(c) => c,
            Self::Linear { first, last } => first + (last - first) * x,
            Self::ThreeSegment([bottom, middle, top]) => {
                let (layer, n) = (u64::from(layer), u64::from(n_layers));
                if layer < n.div_ceil(3) {
                    bottom
                } else if layer < n.saturating_mul(2).div_ceil(3) {
                    middle
                } else {
                    top
                }
            }
            Self::Quadratic([c0, c1, c2]) => {
                let u = 2.0 * x - 1.0;
                c0 + c1 * u + c2 * u * u
            }
        }
    }
}

/// `scale * sinh(theta)`: a weight to search for that is linear near 0 and logarithmic far from it, with either sign.
pub fn sinh_weight(theta: f32, scale: f32) -> f32 {
    scale * libm::sinhf(theta)
}
