//! Naive, allocating, double-precision versions of the methods, written from their formulas one head at a time.
//! They share no code with the crate.
#![allow(dead_code)] // every test file uses another part

use crate::support::Layer;

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

pub fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

pub fn keys(l: &Layer, h: usize) -> Vec<Vec<f64>> {
    (0..l.lens[h] as usize).map(|i| wide(l.key(h, i))).collect()
}

pub fn values(l: &Layer, h: usize) -> Vec<Vec<f64>> {
    (0..l.lens[h] as usize).map(|i| wide(l.value(h, i))).collect()
}

/// Softmax rows of the last `w` queries of query head `q`: `[w][n]`, zero where the query cannot see.
pub fn attention(l: &Layer, q: usize, w: usize) -> Vec<Vec<f64>> {
    let keys = keys(l, q / l.group);
    let n = keys.len();
    let w = w.min(n).min(l.n_queries);
    (0..w)
        .map(|t| {
            let query = wide(l.query(q, l.n_queries - w + t));
            let seen = n - w + t + 1;
            let logits: Vec<f64> = keys[..seen].iter().map(|k| dot(&query, k) * f64::from(l.scale)).collect();
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = logits.iter().map(|x| (x - max).exp()).collect();
            let z: f64 = e.iter().sum();
            (0..n).map(|i| e.get(i).map_or(0.0, |e| e / z)).collect()
        })
        .collect()
}

/// Window attention of KV head `h` on its first `m` entries, averaged over the group and over the queries that can
/// see the entry; then a mean pool of 5 with zeros outside.
pub fn snapkv(l: &Layer, h: usize, w_obs: usize, m: usize) -> Vec<f64> {
    let n = l.lens[h] as usize;
    let w = w_obs.min(n).min(l.n_queries);
    let mut a = vec![0.0; n];
    for g in 0..l.group {
        for row in attention(l, h * l.group + g, w) {
            a.iter_mut().zip(&row).for_each(|(a, p)| *a += p);
        }
    }
    for (i, a) in a.iter_mut().enumerate() {
        *a /= (l.group * w.min(n - i)) as f64;
    }
    pool5(&a[..m])
}

pub fn pool5(a: &[f64]) -> Vec<f64> {
    let at = |i: i64| if i < 0 { 0.0 } else { a.get(i as usize).copied().unwrap_or(0.0) };
    (0..a.len() as i64).map(|i| (i - 2..=i + 2).map(at).sum::<f64>() / 5.0).collect()
}

pub fn min_max(x: &[f64]) -> Vec<f64> {
    let lo = x.iter().copied().fold(f64::INFINITY, f64::min);
    let hi = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    x.iter().map(|x| (x - lo) / (hi - lo + 1e-8)).collect()
}

fn to_mean(x: &[f64], level: f64) -> Vec<f64> {
    let m = mean(x);
    x.iter().map(|x| x * level / (m + 1e-8)).collect()
}

/// Key statistics of one head over all its entries.
pub struct Geometry {
    pub cosines: Vec<f64>,
    pub distances: Vec<f64>,
    pub rho_c: f64,
    pub rho_e: f64,
}

pub fn geometry(l: &Layer, h: usize) -> Geometry {
    let keys = keys(l, h);
    let n = keys.len() as f64;
    let center = |rows: &[Vec<f64>]| -> Vec<f64> {
        (0..l.head_dim).map(|j| rows.iter().map(|r| r[j]).sum::<f64>() / n).collect()
    };
    let units: Vec<Vec<f64>> = keys
        .iter()
        .map(|k| {
            let z = norm(k);
            k.iter().map(|x| if z == 0.0 { 0.0 } else { x / z }).collect()
        })
        .collect();
    let (mu, m) = (center(&keys), center(&units));
    let cosines = units.iter().map(|u| dot(u, &m) / norm(&m)).collect();
    let distances: Vec<f64> =
        keys.iter().map(|k| norm(&k.iter().zip(&mu).map(|(a, b)| a - b).collect::<Vec<_>>())).collect();
    let furthest = distances.iter().copied().fold(0.0, f64::max);
    let rho_e = if furthest == 0.0 { 1.0 } else { 1.0 - mean(&distances) / furthest };
    // The mean cosine over ordered pairs, term by term.
    let mut pairs = 0.0;
    for (i, a) in units.iter().enumerate() {
        for (j, b) in units.iter().enumerate() {
            if i != j {
                pairs += dot(a, b);
            }
        }
    }
    Geometry { cosines, distances, rho_c: (pairs / (n * (n - 1.0))).clamp(0.0, 1.0), rho_e }
}

/// MixKV with online redundancy: scores of the entries before the last `w_keep`.
pub fn mixkv(l: &Layer, h: usize, w_obs: usize, w_keep: usize) -> Vec<f64> {
    let m = l.lens[h] as usize - w_keep;
    let a = snapkv(l, h, w_obs, m);
    let importance = with_values(l, h, &a);
    let g = geometry(l, h);
    let d = to_mean(&min_max(&g.cosines[..m].iter().map(|c| -c).collect::<Vec<_>>()), mean(&a));
    (0..m).map(|i| g.rho_c * d[i] + (1.0 - g.rho_c) * importance[i]).collect()
}

/// ECOKV: both metrics in the diversity and in the redundancy.
pub fn ecokv(l: &Layer, h: usize, alpha: f64, beta: f64, w_obs: usize, w_keep: usize) -> Vec<f64> {
    let g = geometry(l, h);
    let (e, rho_e) = (g.distances.clone(), g.rho_e);
    ecokv_of(l, h, (alpha, beta), (w_obs, w_keep), e, rho_e, |e, c| alpha * e + beta * c)
}

/// ECOKV with given distances, redundancy of the distances, and composite of the two scaled metrics.
pub fn ecokv_of(
    l: &Layer,
    h: usize,
    (alpha, beta): (f64, f64),
    (w_obs, w_keep): (usize, usize),
    distances: Vec<f64>,
    rho_e: f64,
    composite: impl Fn(f64, f64) -> f64,
) -> Vec<f64> {
    let m = l.lens[h] as usize - w_keep;
    let a = snapkv(l, h, w_obs, m);
    let importance = with_values(l, h, &a);
    let g = geometry(l, h);
    let c = min_max(&g.cosines[..m].iter().map(|c| 1.0 - c).collect::<Vec<_>>());
    let e = min_max(&distances[..m]);
    let d: Vec<f64> = c.iter().zip(&e).map(|(&c, &e)| composite(e, c)).collect();
    let d = to_mean(&d, mean(&a));
    let rho = (alpha * rho_e + beta * g.rho_c).clamp(0.0, 1.0);
    (0..m).map(|i| rho * d[i] + (1.0 - rho) * importance[i]).collect()
}

pub fn with_values(l: &Layer, h: usize, a: &[f64]) -> Vec<f64> {
    let norms: Vec<f64> = values(l, h)[..a.len()].iter().map(|v| norm(v)).collect();
    let v = to_mean(&min_max(&norms), mean(a));
    a.iter().zip(&v).map(|(a, v)| a + v).collect()
}

/// The indices of the `k` best, ascending; ties keep the older.
pub fn top(scores: &[f64], k: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    let mut kept: Vec<u32> = order[..k].iter().map(|&i| i as u32).collect();
    kept.sort_unstable();
    kept
}

/// AdaKV's exact allocation: entries per head, of `heads` score lists whose last `window` entries are protected.
pub fn adakv(heads: &[Vec<f64>], budget: usize, floor: usize) -> Vec<usize> {
    // (sure, score, index, head)
    let mut all = Vec::new();
    for (h, scores) in heads.iter().enumerate() {
        let sure = top(scores, floor.min(scores.len()));
        for (i, &s) in scores.iter().enumerate() {
            all.push((sure.contains(&(i as u32)), s, i, h));
        }
    }
    all.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)).then(a.3.cmp(&b.3)));
    let mut counts = vec![0; heads.len()];
    all.iter().take(budget * heads.len()).for_each(|&(_, _, _, h)| counts[h] += 1);
    counts
}

/// PyramidKV's line of scored entries per layer, in real numbers.
pub fn pyramid_line(base: f64, room: f64, beta: f64, layers: usize) -> Vec<f64> {
    let (mut min, mut max) = (base / beta, 2.0 * base - base / beta);
    if max >= room {
        max = room;
        min = 2.0 * base - max;
    }
    (0..layers).map(|l| if layers == 1 { base } else { max - l as f64 * (max - min) / (layers - 1) as f64 }).collect()
}

/// R-KV's importance: largest logit of the group, softmax over the first `m` entries, mean over the window, max of 7.
pub fn rkv_importance(l: &Layer, h: usize, w: usize, m: usize) -> Vec<f64> {
    let keys = keys(l, h);
    let mut a = vec![0.0; m];
    for t in 0..w {
        let peak = |k: &Vec<f64>| {
            let logit = |g: usize| dot(&wide(l.query(h * l.group + g, l.n_queries - w + t)), k) * f64::from(l.scale);
            (0..l.group).map(logit).fold(f64::NEG_INFINITY, f64::max)
        };
        let e: Vec<f64> = keys[..m].iter().map(|k| peak(k).exp()).collect();
        let z: f64 = e.iter().sum();
        a.iter_mut().zip(&e).for_each(|(a, e)| *a += e / z / w as f64);
    }
    (0..m).map(|i| a[i.saturating_sub(3)..(i + 4).min(m)].iter().copied().fold(0.0, f64::max)).collect()
}

/// R-KV's redundancy of every entry.
pub fn rkv_redundancy(l: &Layer, h: usize, threshold: f64) -> Vec<f64> {
    let keys = keys(l, h);
    let n = keys.len();
    let mut mean = vec![0.0; n];
    for i in 0..n {
        let mut row: Vec<f64> = (0..n)
            .map(|j| if i == j { 0.0 } else { dot(&keys[i], &keys[j]) / (norm(&keys[i]) * norm(&keys[j])) })
            .collect();
        // The code takes the maximum of `where(c > threshold, index, 0)`.
        let last = (0..n).map(|j| if row[j] > threshold { j } else { 0 }).max().unwrap();
        row[last] = 0.0;
        mean.iter_mut().zip(row).for_each(|(m, c)| *m += c / n as f64);
    }
    let z: f64 = mean.iter().map(|x| x.exp()).sum();
    mean.iter().map(|x| x.exp() / z).collect()
}

/// AdaKV's published allocation of `base` scored entries per head.
pub fn adakv_paper(heads: &[Vec<f64>], base: usize, floor: f64, normalise: bool) -> Vec<usize> {
    let mut all = Vec::new();
    for (h, scores) in heads.iter().enumerate() {
        let mut sorted = scores.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let sum: f64 = sorted.iter().sum();
        let weight = if normalise { sorted.iter().take(base).sum::<f64>() / sum } else { 1.0 };
        all.extend(sorted.iter().map(|s| (s * weight, h)));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut won = vec![0usize; heads.len()];
    all.iter().take(base * heads.len()).for_each(|&(_, h)| won[h] += 1);
    let even = (base as f64 * floor).floor();
    won.iter().map(|&c| (c as f64 * (1.0 - floor) + even).round_ties_even() as usize).collect()
}

/// Attention of every window query on every entry, averaged over the group, `[queries][entries]`.
pub fn window(l: &Layer, h: usize, w: usize) -> Vec<Vec<f64>> {
    let heads: Vec<_> = (0..l.group).map(|g| attention(l, h * l.group + g, w)).collect();
    (0..heads[0].len())
        .map(|t| (0..heads[0][t].len()).map(|i| heads.iter().map(|a| a[t][i]).sum::<f64>() / l.group as f64).collect())
        .collect()
}

/// Similarity of two entries, by key or by attention.
pub fn similarity(l: &Layer, h: usize, w: usize, by_attention: bool) -> impl Fn(usize, usize) -> f64 {
    let vectors: Vec<Vec<f64>> = if by_attention {
        let rows = window(l, h, w);
        (0..rows[0].len())
            .map(|i| {
                let column: Vec<f64> = rows.iter().map(|r| r[i]).collect();
                let m = mean(&column);
                column.iter().map(|x| x - m).collect()
            })
            .collect()
    } else {
        keys(l, h)
    };
    move |i, j| dot(&vectors[i], &vectors[j]) / (norm(&vectors[i]) * norm(&vectors[j]))
}

/// Greedy choice of `count` of the first `base.len()` entries by `base_i + lambda corr(i, S)`; returns the choices in
/// order, and for each how far the runner-up was.
pub fn greedy(
    base: &[f64],
    lambda: f64,
    count: usize,
    seed: &[usize],
    nearest: bool,
    similar: impl Fn(usize, usize) -> f64,
) -> (Vec<usize>, Vec<f64>) {
    let (mut chosen, mut margins, mut set) = (Vec::new(), Vec::new(), seed.to_vec());
    for _ in 0..count {
        let score = |i: usize| {
            let all = set.iter().map(|&j| similar(i, j));
            let corr = match (set.len(), nearest) {
                (0, _) => 0.0,
                (_, true) => all.fold(f64::NEG_INFINITY, f64::max),
                (n, false) => all.sum::<f64>() / n as f64,
            };
            base[i] + lambda * corr
        };
        let mut left: Vec<(f64, usize)> =
            (0..base.len()).filter(|i| !chosen.contains(i)).map(|i| (score(i), i)).collect();
        left.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        margins.push(left[0].0 - left.get(1).map_or(f64::NEG_INFINITY, |x| x.0));
        chosen.push(left[0].1);
        set.push(left[0].1);
    }
    (chosen, margins)
}

/// Distance at which a farthest-first traversal from `start` reaches each row, 0 for those of `start`; from the mean row if
/// there are none.
pub fn farthest_first(rows: &[Vec<f64>], start: &[usize]) -> Vec<f64> {
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    let center: Vec<f64> = (0..rows[0].len()).map(|j| mean(&rows.iter().map(|r| r[j]).collect::<Vec<_>>())).collect();
    let (mut out, mut taken) = (vec![0.0; rows.len()], start.to_vec());
    while taken.len() < rows.len() {
        let gap = |i: usize| match taken.len() {
            0 => distance(&rows[i], &center),
            _ => taken.iter().map(|&j| distance(&rows[i], &rows[j])).fold(f64::INFINITY, f64::min),
        };
        let left = (0..rows.len()).filter(|i| !taken.contains(i));
        // Once an entry was taken from the mean, the mean still counts as a place that was gone to.
        let gap = |i: usize| if start.is_empty() { gap(i).min(distance(&rows[i], &center)) } else { gap(i) };
        let (next, far) = left.map(|i| (i, gap(i))).fold((0, -1.0), |best, x| if x.1 > best.1 { x } else { best });
        out[next] = far;
        taken.push(next);
    }
    out
}
