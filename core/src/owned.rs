//! Fixed-capacity owners of the slices the functions take, for firmware that would rather not juggle them.

use heapless::Vec;

use crate::{
    Error, Keep, Kept, LayerBudget, LayerShape, Policy, RouteError, RouteLayer, Workspace, methods, parse_route,
};

/// Scratch of up to `F32S` and `U32S` elements.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceBuffer<const F32S: usize, const U32S: usize> {
    f32s: Vec<f32, F32S>,
    u32s: Vec<u32, U32S>,
}

impl<const F32S: usize, const U32S: usize> WorkspaceBuffer<F32S, U32S> {
    /// Room for one call with this policy and layer size.
    ///
    /// # Errors
    /// [`Error::WorkspaceTooSmall`] if the capacity does not suffice.
    pub fn new(policy: &Policy, shape: LayerShape, rows: usize) -> Result<Self, Error> {
        let len = policy.workspace_len(shape, rows).ok_or(Error::Overflow("workspace"))?;
        let mut out = Self { f32s: Vec::new(), u32s: Vec::new() };
        let short = |what, need, got| Error::WorkspaceTooSmall { what, need, got };
        out.f32s.resize(len.f32s, 0.0).map_err(|_| short("f32s", len.f32s, F32S))?;
        out.u32s.resize(len.u32s, 0).map_err(|_| short("u32s", len.u32s, U32S))?;
        Ok(out)
    }

    /// To be handed to a call.
    pub fn workspace(&mut self) -> Workspace<'_> {
        Workspace { f32s: &mut self.f32s, u32s: &mut self.u32s }
    }
}

/// Kept entries of a layer of up to `ROWS` rows and `HEADS` KV heads.
#[derive(Clone, Debug, Default)]
pub struct KeepBuffer<const ROWS: usize, const HEADS: usize> {
    indices: Vec<u32, ROWS>,
    counts: Vec<u32, HEADS>,
}

impl<const ROWS: usize, const HEADS: usize> KeepBuffer<ROWS, HEADS> {
    /// Room for a layer; nothing is kept yet.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if the capacity does not suffice.
    pub fn new(rows: usize, n_kv_heads: usize) -> Result<Self, Error> {
        let mut out = Self { indices: Vec::new(), counts: Vec::new() };
        let short = |what, need, got| Error::LengthMismatch { what, need, got };
        out.indices.resize(rows, 0).map_err(|_| short("indices", rows, ROWS))?;
        out.counts.resize(n_kv_heads, 0).map_err(|_| short("counts", n_kv_heads, HEADS))?;
        Ok(out)
    }

    /// To be written by [`evict_layer`](crate::evict_layer).
    pub fn keep(&mut self) -> Keep<'_> {
        Keep { indices: &mut self.indices, counts: &mut self.counts }
    }

    /// As written.
    pub fn kept(&self) -> Kept<'_> {
        Kept { indices: &self.indices, counts: &self.counts }
    }

    /// What head `h`, whose rows begin at `start`, keeps: ascending, relative to `start`.
    pub fn head(&self, h: usize, start: usize) -> &[u32] {
        let count = self.counts.get(h).copied().unwrap_or(0) as usize;
        self.indices.get(start..start.saturating_add(count)).unwrap_or_default()
    }
}

/// Budgets of up to `LAYERS` layers.
///
/// # Errors
/// As [`LayerBudget::allocate`]; [`Error::LengthMismatch`] if the capacity does not suffice.
pub fn layer_budgets<const LAYERS: usize>(
    rule: LayerBudget,
    n_layers: usize,
    budget: u32,
    window: u32,
    seq_len: u32,
) -> Result<Vec<u32, LAYERS>, Error> {
    let mut out = Vec::new();
    let short = Error::LengthMismatch { what: "layers", need: n_layers, got: LAYERS };
    out.resize(n_layers, 0).map_err(|_| short)?;
    rule.allocate(budget, window, seq_len, &mut out)?;
    Ok(out)
}

/// A route of up to `LAYERS` layers; `None` if the capacity does not suffice.
///
/// # Errors
/// As [`parse_route`].
pub fn route<const LAYERS: usize>(
    text: &str,
    n_layers: usize,
    n_kv_heads: u32,
) -> Option<Result<Vec<RouteLayer, LAYERS>, RouteError>> {
    let blank = RouteLayer { method: methods::ALL.first()?, budget: None };
    let mut out = Vec::new();
    out.resize(n_layers, blank).ok()?;
    Some(parse_route(text, n_kv_heads, &mut out).map(|()| out))
}
