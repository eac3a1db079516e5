//! Applies the eviction to each layer as soon as its attention is done.

use std::time::{Duration, Instant};

use ecokv_core::{self as core, Evicted, HeadBudget, LayerMut, LayerShape, LayerView, Policy, RouteLayer, Rows, tag};

use crate::Error;
use crate::cache::{Kept, SlotRows, Staging};
use crate::engine::Engine;
use crate::model::Staged;
use crate::observe::Observer;
use crate::session::{Modalities, Modality, SessionOptions};
use crate::threads::Pool;

/// SparseMM's share of the budget that every head gets, whatever its score.
const EVEN_SHARE: f32 = 0.1;

/// What a session was asked to evict.
pub(crate) struct Plan<'a> {
    pub options: &'a SessionOptions,
    /// `[n_layers]`, or empty.
    pub route: &'a [RouteLayer],
    /// `[n_layers][n_kv_heads]`, or empty.
    pub head_scores: &'a [f32],
    pub modalities: Modalities,
}

/// One eviction of a prompt, layer after layer.
pub(crate) struct Evictor<'a> {
    engine: &'a Engine,
    headroom: usize,
    /// Policy and budget of each layer; empty if everything is kept.
    layers: Vec<(Policy, u32)>,
    /// `[n_layers][n_kv_heads]`, or empty.
    head_budgets: Vec<u32>,
    /// Whether each position comes from an image.
    images: &'a [bool],
    /// Flags of positions from text and from images.
    flags: [u8; 2],
    /// `[n_kv_heads]`, or empty.
    image_budgets: Vec<u32>,
    observer: Observer,
    f32s: Vec<f32>,
    u32s: Vec<u32>,
    indices: Vec<u32>,
    counts: Vec<u32>,
    /// `[n_kv_heads]` Rows at the start of each head that the layer's window has left behind.
    forgotten: Vec<u32>,
    tags: Vec<u8>,
    slots: SlotRows,
    /// Rows before the eviction.
    pub rows_full: usize,
    /// Entries protected at the end of each head, `[n_layers]`.
    pub recent_kept: Vec<u32>,
    /// Scores that were NaN.
    pub nan_scores: u32,
    /// Time spent.
    pub elapsed: Duration,
}

impl<'a> Evictor<'a> {
    /// For a prompt that ends where `images` ends.
    pub fn new(engine: &'a Engine, plan: Plan<'_>, images: &'a [bool]) -> Result<Evictor<'a>, Error> {
        let (c, seq_len) = (engine.config(), images.len());
        let mut layers = Vec::new();
        let mut head_budgets = Vec::new();
        if let Some(e) = &plan.options.eviction {
            let window = e.policy.protect.recent.entries();
            let mut budgets = vec![0; c.n_layers];
            e.layer_budget.allocate(e.budget, window, seq_len as u32, &mut budgets)?;
            layers = budgets.into_iter().map(|budget| (e.policy, budget)).collect();
            for (layer, r) in layers.iter_mut().zip(plan.route) {
                *layer = (r.method.policy, r.budget.unwrap_or(e.budget));
            }
            if layers.iter().any(|(p, _)| p.head_budget == HeadBudget::Table) {
                head_budgets = vec![0; c.n_layers * c.n_kv_heads];
                if plan.head_scores.is_empty() {
                    return Err(core::Error::MissingObservation("a profile of head scores").into());
                }
                core::from_profile(plan.head_scores, e.budget, window, EVEN_SHARE, &mut head_budgets)?;
            }
        }
        let protected = |kind| if plan.modalities.protect == Some(kind) { tag::PROTECTED } else { 0 };
        Ok(Evictor {
            flags: [protected(Modality::Text), protected(Modality::Image) | tag::IMAGE],
            image_budgets: plan.modalities.image_budget.map_or(Vec::new(), |n| vec![n; c.n_kv_heads]),
            engine,
            headroom: plan.options.n_generate.min(plan.options.n_ctx.saturating_sub(seq_len)),
            layers,
            head_budgets,
            images,
            observer: Observer::default(),
            f32s: Vec::new(),
            u32s: Vec::new(),
            indices: Vec::new(),
            counts: vec![0; c.n_kv_heads],
            forgotten: vec![0; c.n_kv_heads],
            tags: Vec::new(),
            slots: SlotRows::default(),
            rows_full: 0,
            recent_kept: Vec::new(),
            nan_scores: 0,
            elapsed: Duration::ZERO,
        })
    }

    /// Fills the cache of one layer with what stays of its rows.
    pub fn finish(&mut self, s: Staged<'_>) -> Result<(), Error> {
        let start = Instant::now();
        let cx = &self.engine.compute;
        self.forget(&s);
        let visible = |h: usize| self.forgotten[h]..s.rows.len(h) as u32;
        self.rows_full += (0..s.rows.n_kv_heads()).map(|h| visible(h).len()).sum::<usize>();
        match self.layers.get(s.layer).copied() {
            None => {
                let kept = |h: usize| Kept::Range(visible(h));
                s.cache.fill(cx, s.rows, kept, self.headroom, &SlotRows::default());
            }
            Some((policy, budget)) => {
                self.select(&policy, budget, &s)?;
                if let Evicted::Merge(rule) = policy.evicted {
                    self.merge(rule, s.rows)?;
                }
                let capacity = s.rows.capacity();
                let kept = |h: usize| {
                    let forgotten = self.forgotten[h];
                    let kept = &self.indices[h * capacity + forgotten as usize..][..self.counts[h] as usize];
                    Kept::Rows(kept.iter().map(|i| forgotten + i).collect())
                };
                s.cache.fill(cx, s.rows, kept, self.headroom, &self.slots);
            }
        }
        self.elapsed += start.elapsed();
        Ok(())
    }

    /// What the layer's window has left behind is neither kept nor scored.
    fn forget(&mut self, s: &Staged<'_>) {
        let window = self.engine.config().windows[s.layer];
        let next = s.positions.last().map_or(0, |p| p.index as usize + 1);
        for (h, forgotten) in self.forgotten.iter_mut().enumerate() {
            let gone = |window: usize| s.rows.positions(h).partition_point(|&p| p as usize + window <= next);
            *forgotten = window.map_or(0, gone) as u32;
        }
    }

    /// Fills `indices`, `counts` and `slots` for one layer, counted from the first row that is not forgotten.
    fn select(&mut self, policy: &Policy, budget: u32, s: &Staged<'_>) -> Result<(), Error> {
        let c = self.engine.config();
        if c.windows[s.layer].is_some() && matches!(policy.evicted, Evicted::Retain(_)) {
            return Err(core::Error::Config("a layer with a sliding window takes no slots for evicted entries").into());
        }
        let (starts, lens) = self.ranges(s.rows);
        let rows = s.rows.capacity() * c.n_kv_heads;
        let shape = self.shape();
        let size = policy.workspace_len(shape, rows).ok_or(core::Error::Overflow("workspace"))?;
        grow(&mut self.f32s, size.f32s);
        grow(&mut self.u32s, size.u32s);
        self.indices.resize(rows, 0);
        self.tag_images(s.rows);
        let rope = self.engine.decoder.rope(s.layer);
        self.observer.record(&self.engine.compute, policy, c, rope, s);
        // The start of the sequence is protected, not that of a window that has left it behind.
        let mut policy = *policy;
        if self.forgotten.iter().any(|&n| n > 0) {
            policy.protect.sinks = 0;
        }
        let policy = &policy;
        let mut observation = self.observer.observation();
        observation.tags = &self.tags;
        observation.image_budgets = &self.image_budgets;
        if !self.head_budgets.is_empty() {
            observation.head_budgets = &self.head_budgets[s.layer * c.n_kv_heads..][..c.n_kv_heads];
        }
        let view = LayerView {
            shape,
            starts: &starts,
            lens: &lens,
            keys: Rows::F32(s.rows.all_keys()),
            values: Some(Rows::F32(s.rows.all_values())),
            observation,
            scale: c.attention_scale,
            layer: s.layer as u32,
            n_layers: c.n_layers as u32,
        };
        let dispatch = core::Dispatch::detect();
        let keep = core::Keep { indices: &mut self.indices, counts: &mut self.counts };
        // Threads share the heads where these are chosen as they would be together.
        let protects = self.flags.iter().any(|f| f & tag::PROTECTED != 0);
        let apart = policy.heads_apart() && !protects && lens.iter().all(|&len| len > 0 && len == lens[0]);
        let report = if apart {
            evict_apart(&self.engine.compute.pool, policy, budget, &view, (&mut self.f32s, &mut self.u32s), keep)?
        } else {
            let workspace = core::Workspace { f32s: &mut self.f32s, u32s: &mut self.u32s };
            core::evict_layer(dispatch, policy, budget, &view, workspace, keep)?
        };
        self.recent_kept.push(report.recent_kept);
        self.nan_scores += report.nan_scores;
        let fits = lens.iter().zip(&self.counts).all(|(len, count)| len == count);
        self.slots = SlotRows::default();
        if let (Evicted::Retain(retain), false) = (policy.evicted, fits) {
            self.slots = SlotRows::new(c.n_kv_heads, retain.slots as usize, c.head_dim);
            let workspace = core::Workspace { f32s: &mut self.f32s, u32s: &mut self.u32s };
            let kept = core::Kept { indices: &self.indices, counts: &self.counts };
            let SlotRows { keys, values, mass, .. } = &mut self.slots;
            // No room for moments: a policy that wants them is refused.
            let slots = core::Slots { keys, values, mass, members: &mut [], moments: None };
            core::retain_layer(dispatch, policy, budget, &view, workspace, kept, slots)?;
        }
        Ok(())
    }

    /// Merges what is evicted into what is kept.
    fn merge(&mut self, rule: core::Merge, rows: &mut Staging) -> Result<(), Error> {
        let shape = self.shape();
        let n_rows = rows.capacity() * shape.n_kv_heads;
        let size = core::merge_workspace_len(shape, n_rows).ok_or(core::Error::Overflow("workspace"))?;
        grow(&mut self.f32s, size.f32s);
        grow(&mut self.u32s, size.u32s);
        let (starts, lens) = self.ranges(rows);
        let attention = self.observer.observation().column_sums;
        let (keys, values) = rows.rows_mut();
        let layer = LayerMut { shape, starts: &starts, lens: &lens, keys, values, counts: &mut [], attention };
        let workspace = core::Workspace { f32s: &mut self.f32s, u32s: &mut self.u32s };
        let kept = core::Kept { indices: &self.indices, counts: &self.counts };
        Ok(core::merge_layer(core::Dispatch::detect(), rule, layer, kept, workspace)?)
    }

    fn tag_images(&mut self, rows: &Staging) {
        let capacity = rows.capacity();
        self.tags.clear();
        self.tags.resize(rows.n_kv_heads() * capacity, 0);
        for (h, tags) in self.tags.chunks_exact_mut(capacity).enumerate() {
            for (i, t) in tags.iter_mut().enumerate().take(rows.len(h)) {
                let image = self.images.get(rows.position(h, i) as usize) == Some(&true);
                *t = self.flags[usize::from(image)];
            }
        }
    }

    fn shape(&self) -> LayerShape {
        let c = self.engine.config();
        LayerShape { n_kv_heads: c.n_kv_heads, group: c.group(), head_dim: c.head_dim }
    }

    /// First row and number of rows of each head.
    fn ranges(&self, rows: &Staging) -> (Vec<u32>, Vec<u32>) {
        let heads = self.forgotten.iter().enumerate();
        heads.map(|(h, gone)| ((h * rows.capacity()) as u32 + gone, rows.len(h) as u32 - gone)).unzip()
    }
}

/// [`core::evict_layer`] of every head alone, in parallel. All have the same length and the same room.
fn evict_apart(
    pool: &Pool,
    policy: &Policy,
    budget: u32,
    view: &LayerView<'_>,
    (f32s, u32s): (&mut Vec<f32>, &mut Vec<u32>),
    keep: core::Keep<'_>,
) -> Result<core::Report, core::Error> {
    let n_heads = view.shape.n_kv_heads;
    let shape = LayerShape { n_kv_heads: 1, ..view.shape };
    let size = policy.workspace_len(shape, view.lens[0] as usize).ok_or(core::Error::Overflow("workspace"))?;
    grow(f32s, n_heads * size.f32s);
    grow(u32s, n_heads * size.u32s);
    let mut reports = vec![Ok(core::Report::default()); n_heads];
    let capacity = keep.indices.len() / n_heads;
    let workspaces = f32s.chunks_exact_mut(size.f32s).zip(u32s.chunks_exact_mut(size.u32s));
    let outputs = keep.indices.chunks_exact_mut(capacity).zip(keep.counts.chunks_exact_mut(1)).zip(&mut reports);
    pool.each(workspaces.zip(outputs).enumerate().collect(), |(h, ((f32s, u32s), ((indices, counts), report)))| {
        let Some(head) = view.head(h) else { return };
        let indices = &mut indices[view.starts[h] as usize % capacity..];
        let workspace = core::Workspace { f32s, u32s };
        *report = core::evict_layer(
            core::Dispatch::detect(),
            policy,
            budget,
            &head,
            workspace,
            core::Keep { indices, counts },
        );
    });
    reports.into_iter().try_fold(core::Report::default(), |mut all, report| {
        let report = report?;
        all.recent_kept = report.recent_kept;
        all.nan_scores += report.nan_scores;
        Ok(all)
    })
}

/// Makes room for `n` elements and keeps what there is: heads and whole layers take turns with the same scratch.
fn grow<T: Clone + Default>(scratch: &mut Vec<T>, n: usize) {
    scratch.resize(scratch.len().max(n), T::default());
}
