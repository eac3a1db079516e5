//! Planted entries that tell the metrics apart: unusual in direction, in length, or only in the attention they get.
//! It shows that the definitions differ as intended; it says nothing about real models.

mod support;

use ecokv_core::*;
use support::*;

const N: usize = 512;
const D: usize = 64;
const WINDOW: usize = 32;
const SEEDS: u64 = 20;

/// Shares kept of the entries planted to be unusual in angle, in radius and in importance.
#[derive(Debug, Default)]
struct Kept3 {
    angular: f64,
    radial: f64,
    importance: f64,
}

#[test]
fn planted_entries() {
    let window = |name: &str, w: u32| policy(name).with_window(w);
    for mean in [0.5, 2.0, 6.0] {
        let snap = [8, 32].map(|w| kept(&window("snapkv", w), mean));
        let mix = [8, 32].map(|w| kept(&window("mixkv", w), mean));
        let eco = [8, 32].map(|w| kept(&window("ecokv", w), mean));
        let [_, snap32] = &snap;
        let [_, mix32] = &mix;
        let table = format!("common mean {mean}: snapkv {snap:.2?} mixkv {mix:.2?} ecokv {eco:.2?}");
        assert!(snap32.angular <= 0.2, "{table}");
        assert!(mix.iter().chain(&eco).all(|k| k.angular >= 0.9), "{table}");
        assert!(eco.iter().all(|k| k.radial >= 0.9), "{table}");
        assert!(mix.iter().all(|k| k.radial <= 0.5), "{table}");
        for [w8, w32] in [&snap, &mix, &eco] {
            assert!(w8.importance > w32.importance, "{table}");
        }
        // Near-parallel keys look redundant to the cosine, which then takes the weight from importance.
        assert!(mean < 1.0 || mix32.importance < snap32.importance, "{table}");
        println!("{table}");
    }
}

/// Mean over the seeds at 64 entries.
fn kept(p: &Policy, mean: f32) -> Kept3 {
    let mut sum = Kept3::default();
    for seed in 0..SEEDS {
        let (layer, planted) = plant(&mut Rng(1000 + seed), mean);
        let kept = &evict(p, 64, &layer)[0];
        let share = |p: &[usize]| p.iter().filter(|&&i| kept.contains(&(i as u32))).count() as f64 / 6.0;
        let [a, r, i] = planted.each_ref().map(|p| share(p) / SEEDS as f64);
        sum = Kept3 { angular: sum.angular + a, radial: sum.radial + r, importance: sum.importance + i };
    }
    sum
}

/// Clustered keys around a common mean of `strength * sqrt(D)` along the first axis; the planted positions of each kind.
fn plant(rng: &mut Rng, strength: f32) -> (Layer, [Vec<usize>; 3]) {
    let off_axis = |rng: &mut Rng| {
        let mut x = rng.normals(D);
        x[0] = 0.0;
        x
    };
    let centres: Vec<Vec<f32>> = (0..12).map(|_| off_axis(rng)).collect();
    let mut keys: Vec<Vec<f32>> = (0..N)
        .map(|i| {
            let c = &centres[i * 12 / N];
            let mut k: Vec<f32> = c.iter().map(|c| 0.5 * c + 0.15 * rng.normal()).collect();
            k[0] += strength * (D as f32).sqrt();
            k
        })
        .collect();
    let mut places = Vec::new();
    while places.len() < 18 {
        let at = 8 + rng.below(N - 48);
        if !places.contains(&at) {
            places.push(at);
        }
    }
    let planted = [places[..6].to_vec(), places[6..12].to_vec(), places[12..].to_vec()];
    for &i in &planted[0] {
        let x = off_axis(rng);
        keys[i].iter_mut().zip(x).for_each(|(k, x)| *k += 1.2 * x);
    }
    for &i in &planted[1] {
        let factor = 1.0 + 0.9 * (D as f32).sqrt() / length(&keys[i]);
        keys[i].iter_mut().for_each(|k| *k *= factor);
    }
    let mean: Vec<f32> = (0..D).map(|j| keys.iter().map(|k| k[j]).sum::<f32>() / N as f32).collect();
    let mut queries = Vec::new();
    for _ in 0..WINDOW {
        let target = &keys[planted[2][rng.below(6)]];
        let away: Vec<f32> = target.iter().zip(&mean).map(|(k, m)| k - m).collect();
        let z = length(&away);
        queries.extend(away.iter().map(|x| 6.0 * x / z + 0.3 * rng.normal()));
    }
    // Length 1 exactly: scaled to [0, 1], lengths that differ by rounding would be noise as large as any signal.
    let mut values = vec![0.0; N * D];
    values.chunks_mut(D).for_each(|v| v[rng.below(D)] = 1.0);
    let mut layer = Layer {
        n_kv_heads: 1,
        group: 1,
        head_dim: D,
        lens: vec![N as u32],
        keys: keys.concat(),
        values,
        n_queries: WINDOW,
        queries,
        scale: 1.0 / (D as f32).sqrt(),
        n_layers: 1,
        ..Default::default()
    };
    layer.place();
    (layer, planted)
}

fn length(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>().sqrt()
}
