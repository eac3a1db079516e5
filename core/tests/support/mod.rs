//! What the tests share: an owned layer, a caller that allocates, seeded numbers.
#![allow(dead_code)] // every test file uses another part

pub mod golden;
pub mod sample;

use ecokv_core::*;
use half::f16;

/// A layer with its own memory. All heads lie one after the other.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    pub n_kv_heads: usize,
    pub group: usize,
    pub head_dim: usize,
    pub lens: Vec<u32>,
    pub starts: Vec<u32>,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
    pub n_queries: usize,
    pub queries: Vec<f32>,
    pub given: Vec<f32>,
    pub column_sums: Vec<f32>,
    pub query_mean: Vec<f32>,
    pub query_covariance: Vec<f32>,
    pub output_norms: Vec<f32>,
    pub positions: Vec<u32>,
    pub slots_in_use: bool,
    pub tags: Vec<u8>,
    pub head_weights: Vec<f32>,
    pub head_budgets: Vec<u32>,
    pub image_budgets: Vec<u32>,
    pub scale: f32,
    pub layer: u32,
    pub n_layers: u32,
}

impl Layer {
    /// Normal keys, values and queries; every key shares a common part of length `bias`.
    pub fn random(rng: &mut Rng, lens: &[u32], group: usize, head_dim: usize, n_queries: usize, bias: f32) -> Self {
        let rows: usize = lens.iter().map(|&l| l as usize).sum();
        let h = lens.len();
        let mut layer = Self {
            n_kv_heads: h,
            group,
            head_dim,
            lens: lens.to_vec(),
            keys: rng.normals(rows * head_dim),
            values: rng.normals(rows * head_dim),
            n_queries,
            queries: rng.normals(h * group * n_queries * head_dim),
            given: rng.normals(rows),
            column_sums: rng.normals(rows).iter().map(|x| x.abs()).collect(),
            query_mean: rng.normals(h * group * head_dim),
            query_covariance: (0..h * group).flat_map(|_| spread(rng, head_dim)).collect(),
            output_norms: rng.normals(rows).iter().map(|x| x.abs()).collect(),
            positions: Vec::new(),
            slots_in_use: false,
            tags: Vec::new(),
            head_weights: (0..h).map(|_| rng.uniform()).collect(),
            head_budgets: vec![],
            image_budgets: vec![],
            scale: 1.0 / (head_dim as f32).sqrt(),
            layer: 1,
            n_layers: 4,
            starts: Vec::new(),
        };
        layer.keys.iter_mut().step_by(head_dim).for_each(|k| *k += bias);
        layer.place();
        layer
    }

    /// Recomputes `starts` from `lens`.
    pub fn place(&mut self) {
        self.starts = self
            .lens
            .iter()
            .scan(0, |at, len| {
                *at += len;
                Some(*at - len)
            })
            .collect();
    }

    pub fn rows(&self) -> usize {
        self.keys.len() / self.head_dim
    }

    pub fn shape(&self) -> LayerShape {
        LayerShape { n_kv_heads: self.n_kv_heads, group: self.group, head_dim: self.head_dim }
    }

    pub fn view(&self) -> LayerView<'_> {
        LayerView {
            shape: self.shape(),
            starts: &self.starts,
            lens: &self.lens,
            keys: Rows::F32(&self.keys),
            values: Some(Rows::F32(&self.values)),
            observation: Observation {
                n_queries: self.n_queries,
                queries: &self.queries,
                given: &self.given,
                column_sums: &self.column_sums,
                query_mean: &self.query_mean,
                query_covariance: &self.query_covariance,
                output_norms: &self.output_norms,
                positions: &self.positions,
                slots_in_use: self.slots_in_use,
                tags: &self.tags,
                head_weights: &self.head_weights,
                head_budgets: &self.head_budgets,
                image_budgets: &self.image_budgets,
            },
            scale: self.scale,
            layer: self.layer,
            n_layers: self.n_layers,
        }
    }

    /// Row `i` of head `h`.
    pub fn key(&self, h: usize, i: usize) -> &[f32] {
        &self.keys[(self.starts[h] as usize + i) * self.head_dim..][..self.head_dim]
    }

    pub fn value(&self, h: usize, i: usize) -> &[f32] {
        &self.values[(self.starts[h] as usize + i) * self.head_dim..][..self.head_dim]
    }

    pub fn query(&self, q: usize, t: usize) -> &[f32] {
        &self.queries[(q * self.n_queries + t) * self.head_dim..][..self.head_dim]
    }
}

/// A random covariance, `[d][d]`.
fn spread(rng: &mut Rng, d: usize) -> Vec<f32> {
    let a = rng.normals(d * d);
    let dot = |i: usize, j: usize| (0..d).map(|k| a[i * d + k] * a[j * d + k]).sum::<f32>() / (4 * d) as f32;
    (0..d * d).map(|x| dot(x / d, x % d)).collect()
}

/// Kept indices per head.
pub type Lists = Vec<Vec<u32>>;

pub fn evict_view(d: Dispatch, p: &Policy, budget: u32, v: &LayerView<'_>) -> Result<(Lists, Report), Error> {
    let rows = match v.keys {
        Rows::F32(k) => k.len() / v.shape.head_dim,
        Rows::F16(k) => k.len() / v.shape.head_dim,
        Rows::BF16(k) => k.len() / v.shape.head_dim,
        Rows::Q8_0(k) => k.len() / (v.shape.head_dim / 32 * 34),
        _ => panic!("rows of another format"),
    };
    let len = p.workspace_len(v.shape, rows).ok_or(Error::Overflow("workspace"))?;
    let (mut f32s, mut u32s) = (vec![f32::NAN; len.f32s], vec![0xdead_beef; len.u32s]);
    let (mut indices, mut counts) = (vec![u32::MAX; rows], vec![u32::MAX; v.shape.n_kv_heads]);
    let report = evict_layer(
        d,
        p,
        budget,
        v,
        Workspace { f32s: &mut f32s, u32s: &mut u32s },
        Keep { indices: &mut indices, counts: &mut counts },
    )?;
    let kept = v.starts.iter().zip(&counts).map(|(&s, &c)| indices[s as usize..][..c as usize].to_vec()).collect();
    Ok((kept, report))
}

pub fn evict(p: &Policy, budget: u32, layer: &Layer) -> Lists {
    evict_view(Dispatch::detect(), p, budget, &layer.view()).unwrap().0
}

/// Kept lists as `evict_layer` writes them.
pub fn flat(kept: &[Vec<u32>], l: &Layer) -> (Vec<u32>, Vec<u32>) {
    let mut indices = vec![0; l.rows()];
    for (k, &s) in kept.iter().zip(&l.starts) {
        indices[s as usize..][..k.len()].copy_from_slice(k);
    }
    (indices, kept.iter().map(|k| k.len() as u32).collect())
}

pub fn evicted(kept: &[u32], n: u32) -> Vec<usize> {
    (0..n).filter(|i| !kept.contains(i)).map(|i| i as usize).collect()
}

pub fn near(a: &[f32], b: &[f64], limit: f64, what: &str) {
    for (a, b) in a.iter().zip(b) {
        assert!((f64::from(*a) - b).abs() <= limit, "{what}: {a} {b}");
    }
}

/// Scores, `[rows]`.
pub fn scores(p: &Policy, budget: u32, layer: &Layer) -> Vec<f32> {
    scores_on(Dispatch::detect(), p, budget, layer)
}

pub fn scores_on(d: Dispatch, p: &Policy, budget: u32, layer: &Layer) -> Vec<f32> {
    let len = p.workspace_len(layer.shape(), layer.rows()).unwrap();
    let (mut f32s, mut u32s) = (vec![f32::NAN; len.f32s], vec![0; len.u32s]);
    let mut out = vec![f32::NAN; layer.rows()];
    let w = Workspace { f32s: &mut f32s, u32s: &mut u32s };
    score_layer(d, p, budget, &layer.view(), w, &mut out).unwrap();
    out
}

pub fn policy(name: &str) -> Policy {
    methods::by_name(name).unwrap().policy
}

pub fn halves(x: &[f32]) -> Vec<f16> {
    x.iter().map(|&x| f16::from_f32(x)).collect()
}

/// A small generator; tests must not change when a crate does.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 29;
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
    }

    /// In `[0, 1)`.
    pub fn uniform(&mut self) -> f32 {
        (self.next() & 0xff_ffff) as f32 / 16_777_216.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn normal(&mut self) -> f32 {
        let u = self.uniform().max(1e-7);
        (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * self.uniform()).cos()
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}
