//! Choosing entries one by one, each unlike those chosen before.

use crate::attention::pool;
use crate::axes::{Attention, Mmr, Search, Similarity};
use crate::evict::Job;
use crate::kernels;
use crate::math::{copy, float, ratio, sqrt};
use crate::select::{Cut, PROTECTED, rank};
use crate::shape::Head;
use crate::workspace::Parts;

/// Turns the importance in `parts.scores` into the part of the criterion that does not depend on what is chosen.
pub(crate) fn base(job: &Job<'_>, head: Head, m: Mmr, a: Attention, parts: &mut Parts<'_>) {
    let n = job.candidates(head);
    let lambda = m.dispersion.at(job.view.layer, job.view.n_layers);
    if job.policy.tile_queries() > 0 {
        let (sigma, scratch) = parts.temp.split_at_mut_checked(head.len).unwrap_or_default();
        let from = head.start.saturating_mul(job.policy.tile_queries());
        let each = parts.window.get(from..).unwrap_or_default();
        dispersion(job, head, each, sigma, scratch);
        let sigma = sigma.get_mut(..n).unwrap_or_default();
        if m.pool_dispersion {
            let raw = scratch.get_mut(..n).unwrap_or_default();
            copy(sigma, raw);
            pool(a.pool, raw, sigma);
        }
        kernels::axpy(job.d, lambda, sigma, head.of_mut(parts.scores));
    }
    if m.mean_match {
        let signal = head.of(parts.signal).get(..n).unwrap_or_default();
        let mean = kernels::sum(job.d, signal) / float(n);
        kernels::scale(job.d, ratio(1.0, mean), head.of_mut(parts.scores));
    }
}

/// Standard deviation of each entry's attention over the window's queries that can see it.
fn dispersion(job: &Job<'_>, head: Head, each: &[f32], sigma: &mut [f32], mean: &mut [f32]) {
    let n = head.len;
    let w = queries(job, head);
    let mean = mean.get_mut(..n).unwrap_or_default();
    let rows = || each.chunks_exact(n.max(1)).take(w);
    mean.fill(0.0);
    sigma.fill(0.0);
    for row in rows() {
        kernels::axpy(job.d, 1.0, row, mean);
    }
    for (i, mean) in mean.iter_mut().enumerate() {
        *mean /= float(w.min(n.saturating_sub(i)));
    }
    for (t, row) in rows().enumerate() {
        let visible = n.saturating_sub(w).saturating_add(t).saturating_add(1);
        for ((s, &x), &m) in sigma.iter_mut().zip(row).zip(&*mean).take(visible) {
            *s += (x - m) * (x - m);
        }
    }
    for (i, s) in sigma.iter_mut().enumerate() {
        *s = sqrt(*s / float(w.min(n.saturating_sub(i))));
    }
}

/// Queries of the window that the head has.
fn queries(job: &Job<'_>, head: Head) -> usize {
    job.policy.needs().window_queries.min(job.view.observation.n_queries).min(head.len)
}

/// Chooses until `count` entries of the head have the key [`PROTECTED`], which those protected have at the start.
pub(crate) fn select(job: &Job<'_>, head: Head, m: Mmr, count: usize, parts: &mut Parts<'_>) {
    let attention = matches!(m.similarity, Similarity::NearestAttention | Similarity::MeanAttention);
    let (norms, rest) = parts.temp.split_at_mut_checked(head.len).unwrap_or_default();
    let (similar, rest) = rest.split_at_mut_checked(head.len).unwrap_or_default();
    let from = head.start.saturating_mul(job.policy.tile_queries());
    let size = queries(job, head).saturating_mul(head.len);
    let each = parts.window.get_mut(from..from.saturating_add(size)).unwrap_or_default();
    let mut state = Choice {
        job,
        head,
        lambda: m.redundancy.at(job.view.layer, job.view.n_layers),
        mean: matches!(m.similarity, Similarity::MeanKey | Similarity::MeanAttention),
        norms,
        similar,
        scratch: rest.get_mut(..head.len).unwrap_or_default(),
        each: if attention { each } else { &mut [] },
        tile: parts.tile,
        key: parts.mean,
        chosen: 0,
    };
    let (scores, keys) = (head.of(parts.scores), head.of_mut(parts.keys));
    state.prepare();
    let taken = keys.iter().filter(|&&k| k == PROTECTED).count();
    let steps = count.saturating_sub(taken);
    let (order, seen) = (head.of_mut(parts.order), head.of_mut(parts.seen));
    match m.search {
        Search::All => state.greedily(m.seed_protected, steps, scores, keys),
        Search::Lazy => state.lazily(m.seed_protected, steps, scores, keys, order, seen),
        Search::Shortlist(each) => {
            let size = steps.saturating_mul(each as usize);
            state.among(m.seed_protected, steps, scores, keys, shortlist(size, keys, order));
        }
    }
}

/// Whether an entry of this key can be chosen: 0 is the key of those that others go before whatever their scores.
fn open(key: u32) -> bool {
    key != PROTECTED && key != 0
}

/// The indices of the best `size` entries that can be chosen, ascending.
fn shortlist<'a>(size: usize, keys: &[u32], list: &'a mut [u32]) -> &'a [u32] {
    let all = keys.iter().copied().filter(|&key| open(key));
    let size = size.min(all.clone().count());
    let mut cut = Cut::top(all, size);
    let chosen = (0u32..).zip(keys).filter(|&(_, &key)| open(key) && cut.take(key));
    for (slot, (i, _)) in list.iter_mut().zip(chosen) {
        *slot = i;
    }
    list.get(..size).unwrap_or_default()
}

/// The key of an entry that may yet rank first.
const UNKNOWN: u32 = PROTECTED - 1;

struct Choice<'a> {
    job: &'a Job<'a>,
    head: Head,
    lambda: f32,
    /// Mean similarity instead of that of the nearest.
    mean: bool,
    /// Lengths of the vectors that are compared, `[len]`.
    norms: &'a mut [f32],
    /// Similarity with the chosen: of the nearest, or summed, `[len]`.
    similar: &'a mut [f32],
    scratch: &'a mut [f32],
    /// Centred attention, `[queries][len]`, if it is compared instead of keys.
    each: &'a mut [f32],
    tile: &'a mut [f32],
    key: &'a mut [f32],
    chosen: usize,
}

impl Choice<'_> {
    fn prepare(&mut self) {
        let (job, head, n) = (self.job, self.head, self.head.len);
        let d = job.view.shape.head_dim;
        self.similar.fill(if self.mean { 0.0 } else { f32::NEG_INFINITY });
        if self.each.is_empty() {
            let norms = &mut *self.norms;
            job.view.keys.for_tiles(job.d, d, head, n, self.tile, |i, rows| {
                let take = rows.len().checked_div(d).unwrap_or(0);
                kernels::sq_norms(job.d, rows, d, norms.get_mut(i..i.saturating_add(take)).unwrap_or_default());
            });
        } else {
            let w = float(queries(job, head));
            self.scratch.fill(0.0);
            self.norms.fill(0.0);
            for row in self.each.chunks_exact(n.max(1)) {
                kernels::axpy(job.d, 1.0 / w, row, self.scratch);
            }
            for row in self.each.chunks_exact_mut(n.max(1)) {
                kernels::axpy(job.d, -1.0, self.scratch, row);
                for (s, x) in self.norms.iter_mut().zip(row) {
                    *s += *x * *x;
                }
            }
        }
        self.norms.iter_mut().for_each(|x| *x = sqrt(*x));
    }

    fn greedily(&mut self, seed: bool, steps: usize, scores: &[f32], keys: &mut [u32]) {
        for i in 0..keys.len() {
            if seed && keys.get(i) == Some(&PROTECTED) {
                self.add(i);
            }
        }
        for _ in 0..steps {
            let mut best = None;
            for (i, (_, &s)) in keys.iter().zip(scores).enumerate().filter(|(_, (key, _))| open(**key)) {
                let r = rank(s + self.penalty(i), i);
                if best.is_none_or(|(b, _)| r > b) {
                    best = Some((r, i));
                }
            }
            let Some((_, i)) = best else { return };
            if let Some(key) = keys.get_mut(i) {
                *key = PROTECTED;
            }
            self.add(i);
        }
    }

    /// As [`Self::greedily`], choosing from the entries of `list`.
    fn among(&mut self, seed: bool, steps: usize, scores: &[f32], keys: &mut [u32], list: &[u32]) {
        for i in 0..keys.len() {
            if seed && keys.get(i) == Some(&PROTECTED) {
                self.add_to(i, list);
            }
        }
        for _ in 0..steps {
            let mut best = None;
            for i in list.iter().map(|&i| i as usize).filter(|&i| keys.get(i).is_some_and(|&key| open(key))) {
                let r = rank(scores.get(i).copied().unwrap_or(0.0) + self.penalty(i), i);
                if best.is_none_or(|(b, _)| r > b) {
                    best = Some((r, i));
                }
            }
            let Some((_, i)) = best else { return };
            if let Some(key) = keys.get_mut(i) {
                *key = PROTECTED;
            }
            self.add_to(i, list);
        }
    }

    /// As [`Self::greedily`], for scores that only fall: an entry whose last known score is the greatest is brought up to
    /// date, and chosen if it stays the greatest. `order` lists the chosen; `seen` counts those an entry was compared with.
    fn lazily(
        &mut self,
        seed: bool,
        steps: usize,
        scores: &[f32],
        keys: &mut [u32],
        order: &mut [u32],
        seen: &mut [u32],
    ) {
        seen.fill(0);
        let (mut left, mut i) = (steps, 0);
        let listed = |order: &mut [u32], at: usize, i: usize| {
            if let (Some(slot), Ok(i)) = (order.get_mut(at), u32::try_from(i)) {
                *slot = i;
            }
        };
        for (i, (key, &s)) in keys.iter_mut().zip(scores).enumerate() {
            if open(*key) {
                *key = rank(s, i);
            } else if seed && *key == PROTECTED {
                listed(order, self.chosen, i);
                self.chosen = self.chosen.saturating_add(1);
            }
        }
        let mut compared = false;
        while left > 0 {
            if self.chosen > 0 && !compared {
                // Until it was compared once, an entry may also gain: a key can be unlike all others.
                keys.iter_mut().filter(|key| open(**key)).for_each(|key| *key = UNKNOWN);
                compared = true;
            }
            let mut best = None;
            for (j, &key) in keys.iter().enumerate() {
                if open(key) && best.is_none_or(|b| key > b) {
                    (best, i) = (Some(key), j);
                }
            }
            let (Some(_), Some(at), Some(key)) = (best, seen.get_mut(i), keys.get_mut(i)) else { return };
            if *at as usize == self.chosen {
                *key = PROTECTED;
                listed(order, self.chosen, i);
                self.chosen = self.chosen.saturating_add(1);
                left = left.saturating_sub(1);
                continue;
            }
            for &j in order.get(*at as usize..self.chosen).unwrap_or_default() {
                self.load(j as usize);
                self.compare(i, j as usize);
            }
            *at = u32::try_from(self.chosen).unwrap_or(u32::MAX);
            *key = rank(scores.get(i).copied().unwrap_or(0.0) + self.penalty(i), i);
        }
    }

    /// `lambda corr(i, S)`.
    fn penalty(&self, i: usize) -> f32 {
        let s = self.similar.get(i).copied().unwrap_or(0.0);
        match (self.chosen, self.mean) {
            (0, _) => 0.0,
            (n, true) => self.lambda * (s / float(n)),
            (_, false) => self.lambda * s,
        }
    }

    /// Puts `j` into the chosen set, comparing every entry with it.
    fn add(&mut self, j: usize) {
        let (job, n) = (self.job, self.head.len);
        let d = job.view.shape.head_dim;
        self.chosen = self.chosen.saturating_add(1);
        self.load(j);
        let products = &mut *self.scratch;
        if self.each.is_empty() {
            let key = &*self.key;
            job.view.keys.for_tiles(job.d, d, self.head, n, self.tile, |i, rows| {
                let out = products.get_mut(i..).unwrap_or_default();
                let stride = out.len();
                kernels::dots(job.d, key, d, rows, out, stride);
            });
        } else {
            products.fill(0.0);
            for row in self.each.chunks_exact(n.max(1)) {
                kernels::axpy(job.d, row.get(j).copied().unwrap_or(0.0), row, products);
            }
        }
        for i in 0..n {
            let product = self.scratch.get(i).copied().unwrap_or(0.0);
            self.join(i, j, product);
        }
    }

    /// Puts `j` into the chosen set, comparing the entries of `list` with it.
    fn add_to(&mut self, j: usize, list: &[u32]) {
        self.chosen = self.chosen.saturating_add(1);
        self.load(j);
        list.iter().for_each(|&i| self.compare(i as usize, j));
    }

    /// Makes `j` the key that others are compared with.
    fn load(&mut self, j: usize) {
        let (job, d) = (self.job, self.job.view.shape.head_dim);
        if self.each.is_empty() {
            job.view.keys.for_tiles(job.d, d, self.head.row(j), 1, self.tile, |_, row| copy(row, self.key));
        }
    }

    /// What [`Self::add`] does to entry `i`; `j` must be loaded.
    fn compare(&mut self, i: usize, j: usize) {
        let (job, n) = (self.job, self.head.len);
        let d = job.view.shape.head_dim;
        let mut product = [0.0];
        if self.each.is_empty() {
            job.view.keys.for_tiles(job.d, d, self.head.row(i), 1, self.tile, |_, row| {
                kernels::dots(job.d, self.key, d, row, &mut product, 1);
            });
        } else {
            let rows = self.each.chunks_exact(n.max(1));
            let at = |row: &[f32], i: usize| row.get(i).copied().unwrap_or(0.0);
            product = [rows.fold(0.0, |s, row| s + at(row, j) * at(row, i))];
        }
        let [product] = product;
        self.join(i, j, product);
    }

    /// Counts the similarity of `i` with the chosen `j`, given the product of the two.
    fn join(&mut self, i: usize, j: usize, product: f32) {
        let norm = |i: usize| self.norms.get(i).copied().unwrap_or(0.0);
        let x = ratio(product, norm(j) * norm(i));
        if let Some(s) = self.similar.get_mut(i) {
            *s = match self.mean {
                true => *s + x,
                false if x > *s => x,
                false => *s,
            };
        }
    }
}
