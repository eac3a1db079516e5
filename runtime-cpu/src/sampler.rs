//! Choosing the next token.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How the next token is chosen from the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 means the most likely token, always.
    pub temperature: f32,
    /// Only the k most likely tokens; 0 means all.
    pub top_k: usize,
    /// Only the most likely tokens whose probabilities sum to this; 1 means all.
    pub top_p: f32,
    /// Seed of the random choice.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// A seeded sampler.
pub struct Sampler {
    sampling: Sampling,
    rng: StdRng,
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler with its own random state.
    pub fn new(sampling: Sampling) -> Sampler {
        Sampler { sampling, rng: StdRng::seed_from_u64(sampling.seed), candidates: Vec::new() }
    }

    /// The next token of `logits` `[n_vocab]`. Of equal logits the lowest id wins; NaN is never chosen before a number.
    pub fn next(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, .. } = self.sampling;
        if temperature <= 0.0 {
            return argmax(logits);
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().enumerate().filter(|(_, l)| !l.is_nan()).map(|(i, &l)| (i as u32, l)));
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, order);
            self.candidates.truncate(top_k);
        }
        self.candidates.sort_unstable_by(order);
        let Some(&(best, max)) = self.candidates.first() else { return 0 };
        let mut sum = 0.0;
        for (_, l) in &mut self.candidates {
            *l = ((*l - max) / temperature).exp();
            sum += *l;
        }
        if top_p < 1.0 {
            let mut mass = 0.0;
            let n = self.candidates.iter().take_while(|(_, p)| {
                let more = mass < top_p * sum;
                mass += p;
                more
            });
            let n = n.count().max(1);
            self.candidates.truncate(n);
            sum = self.candidates.iter().map(|(_, p)| p).sum();
        }
        let mut at = self.rng.random::<f32>() * sum;
        for &(id, p) in &self.candidates {
            at -= p;
            if at < 0.0 {
                return id;
            }
        }
        best
    }
}

/// Index of the largest logit; the lowest of equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, &l) in logits.iter().enumerate() {
        if l > best.1 {
            best = (i as u32, l);
        }
    }
    best.0
}
