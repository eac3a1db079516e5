//! What the benches share: data, timing settings, and a pass over memory to compare with.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

pub const HEAD_DIMS: [usize; 3] = [64, 80, 128];
pub const ROWS: [usize; 3] = [512, 2048, 8192];
/// Queries of [`Data`].
pub const QUERIES: usize = 8;

/// Short runs: the rows are many, and a shared machine drifts more in a minute than a run of one second errs.
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .configure_from_args()
}

/// `n` numbers in `[-1, 1)` around `middle`, the same for the same seed.
pub fn numbers(n: usize, seed: u64, middle: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / 8_388_608.0 - 1.0 + middle
        })
        .collect()
}

/// Loads every byte once and does as little as possible with it: 32 running sums keep the loads independent.
/// The length in elements is a multiple of 32 in every bench.
pub fn stream(x: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for x in x.as_chunks::<32>().0 {
        for (s, x) in sums.iter_mut().zip(x) {
            *s = s.wrapping_add(*x);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

/// Rows of a head in three formats, and queries.
pub struct Data {
    pub d: usize,
    pub n: usize,
    pub queries: Vec<f32>,
    pub rows: Vec<f32>,
    pub halves: Vec<f16>,
    pub brains: Vec<bf16>,
}

impl Data {
    pub fn new(d: usize, n: usize) -> Self {
        let rows = numbers(n * d, 1, 0.3);
        let (mut halves, mut brains) = (vec![f16::ZERO; n * d], vec![bf16::ZERO; n * d]);
        halves.convert_from_f32_slice(&rows);
        brains.convert_from_f32_slice(&rows);
        Self { d, n, queries: numbers(QUERIES * d, 2, 0.3), rows, halves, brains }
    }

    pub fn id(&self, name: impl Into<String>) -> BenchmarkId {
        BenchmarkId::new(name, format!("{}x{}", self.d, self.n))
    }

    /// A group whose unit of throughput is a row.
    pub fn group<'c>(&self, c: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(self.n as u64));
        group
    }

    /// One pass over as many bytes, warm as the rows are.
    pub fn memory(&self, c: &mut Criterion) {
        let words = vec![1u64; self.d * self.n / 2];
        for (name, words) in [("f32", &words[..]), ("f16", &words[..words.len() / 2])] {
            self.group(c, "memory").bench_function(self.id(name), |b| b.iter(|| stream(black_box(words))));
        }
    }
}
