//! One layer's cache as the scorers see it: borrowed rows, ragged heads.

use half::{bf16, f16};

use crate::Error;
use crate::kernels::{self, Ahead, Dispatch, Q8_0, Q8_0_BYTES, TILE_ROWS, Tile};

/// The head layout of a layer. Query head `q` reads KV head `q / group`; there are `n_kv_heads * group` query heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// KV heads.
    pub n_kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Elements of a key row, and of a value row.
    pub head_dim: usize,
}

/// Key or value rows of all heads, `[rows][head_dim]`, in the format the cache stores them. Every format widens to f32
/// without rounding, so scores depend on the values alone.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Rows<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// The upper half of single precision.
    BF16(&'a [bf16]),
    /// GGUF's 8-bit blocks: per 32 elements a little-endian half-precision scale and 32 signed bytes, 34 bytes.
    /// `head_dim` must be a multiple of 32.
    Q8_0(&'a [u8]),
}

/// What attention saw, and what the host knows about the rows. Empty slices mean "not recorded".
///
/// Write `Observation { n_queries, queries, ..Default::default() }`: further kinds may be added.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation<'a> {
    /// Queries in `queries`, per query head.
    pub n_queries: usize,
    /// The last queries of the prompt as attention used them (after bias, norm and RoPE),
    /// `[n_heads][n_queries][head_dim]`. Query `t` sits at cache index `len - n_queries + t` of its head.
    pub queries: &'a [f32],
    /// Attention each entry received, summed over all queries so far and over the query heads of its group, `[rows]`.
    pub column_sums: &'a [f32],
    /// Mean of the queries to expect, as attention will use them (see [`expected`](crate::expected)),
    /// `[n_heads][head_dim]`.
    pub query_mean: &'a [f32],
    /// Covariance of the queries to expect, `[n_heads][head_dim][head_dim]`.
    pub query_covariance: &'a [f32],
    /// `||W_O v||_1` of every value, averaged over the query heads of its group, `W_O` being the columns of the layer's
    /// output projection that belong to the query head, `[rows]`.
    pub output_norms: &'a [f32],
    /// The host's own scores for [`Importance::Given`](crate::Importance::Given), `[rows]`; higher is kept.
    pub given: &'a [f32],
    /// Weight of diversity in each head for [`Mix::HeadTable`](crate::Mix::HeadTable), `[n_kv_heads]`.
    pub head_weights: &'a [f32],
    /// Entries each head keeps for [`HeadBudget::Table`](crate::HeadBudget::Table), `[n_kv_heads]`.
    pub head_budgets: &'a [u32],
    /// Position of every entry in the sequence, `[rows]`, ascending in each head; empty as long as nothing was evicted, the
    /// positions being the indices then. [`Queries::All`](crate::Queries::All) counts by it who could see an entry.
    pub positions: &'a [u32],
    /// Whether slots hold evicted entries already: they are paid for then even if everything would fit the budget.
    pub slots_in_use: bool,
    /// How many of the layer's budget of entries each head keeps from images, whatever the policy, `[n_kv_heads]`; in
    /// proportion where the head keeps more or fewer than the budget. What images or text cannot fill goes to the other;
    /// protected entries stay. Inside a kind the scores decide, for [`Mmr`](crate::Mmr) those of importance. Empty leaves
    /// the shares to the scores.
    pub image_budgets: &'a [u32],
    /// One byte of flags per row, `[rows]`: see [`tag`].
    pub tags: &'a [u8],
}

/// Flags of [`Observation::tags`].
pub mod tag {
    /// The entry is always kept (system prompt, image boundary, ...). It counts against the budget.
    pub const PROTECTED: u8 = 1;
    /// The entry comes from an image.
    pub const IMAGE: u8 = 2;
}

/// One layer's cache, borrowed. Head `h` owns rows `starts[h] .. starts[h] + lens[h]`, oldest first; heads may have
/// different lengths, may leave gaps between them, and must not overlap.
#[derive(Clone, Copy, Debug)]
pub struct LayerView<'a> {
    /// Head layout.
    pub shape: LayerShape,
    /// First row of each head, `[n_kv_heads]`, ascending.
    pub starts: &'a [u32],
    /// Rows in use per head, `[n_kv_heads]`.
    pub lens: &'a [u32],
    /// Keys as attention sees them (after RoPE), `[rows][head_dim]`.
    pub keys: Rows<'a>,
    /// Values, `[rows][head_dim]`; required when [`Needs::values`](crate::Needs::values) is set.
    pub values: Option<Rows<'a>>,
    /// What attention recorded.
    pub observation: Observation<'a>,
    /// Factor on the dot products before softmax; `1 / sqrt(head_dim)` in most models.
    pub scale: f32,
    /// Index of this layer.
    pub layer: u32,
    /// Layers of the model.
    pub n_layers: u32,
}

/// One head's range of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub index: usize,
    pub start: usize,
    pub len: usize,
}

impl Head {
    /// A head of the single row `i`.
    pub fn row(self, i: usize) -> Self {
        Self { start: self.start.saturating_add(i), len: 1, ..self }
    }

    /// This head's part of a `[rows]` slice.
    pub fn of<'a, T>(&self, x: &'a [T]) -> &'a [T] {
        x.get(self.start..self.start.saturating_add(self.len)).unwrap_or_default()
    }

    /// This head's part of a `[rows]` slice.
    pub fn of_mut<'a, T>(&self, x: &'a mut [T]) -> &'a mut [T] {
        x.get_mut(self.start..self.start.saturating_add(self.len)).unwrap_or_default()
    }
}

impl<'a> LayerView<'a> {
    /// KV head `h` as a layer of its own, which begins at row 0; `None` if there is no such head. See
    /// [`Policy::heads_apart`](crate::Policy::heads_apart).
    pub fn head(&self, h: usize) -> Option<LayerView<'a>> {
        let LayerShape { group, head_dim, .. } = self.shape;
        let (start, n) = (*self.starts.get(h)? as usize, *self.lens.get(h)? as usize);
        let o = &self.observation;
        Some(LayerView {
            shape: LayerShape { n_kv_heads: 1, ..self.shape },
            starts: &[0],
            lens: part(self.lens, h, 1, 1),
            keys: self.keys.part(head_dim, start, n),
            values: self.values.map(|values| values.part(head_dim, start, n)),
            observation: Observation {
                queries: part(o.queries, h, 1, group.saturating_mul(o.n_queries).saturating_mul(head_dim)),
                column_sums: part(o.column_sums, start, n, 1),
                query_mean: part(o.query_mean, h, 1, group.saturating_mul(head_dim)),
                query_covariance: part(
                    o.query_covariance,
                    h,
                    1,
                    group.saturating_mul(head_dim).saturating_mul(head_dim),
                ),
                output_norms: part(o.output_norms, start, n, 1),
                given: part(o.given, start, n, 1),
                head_weights: part(o.head_weights, h, 1, 1),
                head_budgets: part(o.head_budgets, h, 1, 1),
                positions: part(o.positions, start, n, 1),
                image_budgets: part(o.image_budgets, h, 1, 1),
                tags: part(o.tags, start, n, 1),
                ..*o
            },
            ..*self
        })
    }

    /// Checks every length against the shape and returns the number of rows of the layer.
    pub(crate) fn check(&self) -> Result<usize, Error> {
        let LayerShape { n_kv_heads, group, head_dim } = self.shape;
        if n_kv_heads == 0 || group == 0 || head_dim == 0 {
            return Err(Error::Config("n_kv_heads, group and head_dim must be at least 1"));
        }
        let n_heads = n_kv_heads.checked_mul(group).ok_or(Error::Overflow("number of heads"))?;
        same("starts", n_kv_heads, self.starts.len())?;
        same("lens", n_kv_heads, self.lens.len())?;
        let rows = self.keys.rows("keys", head_dim)?;
        if let Some(values) = &self.values {
            same("value rows", rows, values.rows("values", head_dim)?)?;
        }
        let o = &self.observation;
        let queries = n_heads.checked_mul(head_dim).and_then(|n| n.checked_mul(o.n_queries));
        same("queries", queries.ok_or(Error::Overflow("queries"))?, o.queries.len())?;
        let mean = n_heads.checked_mul(head_dim).ok_or(Error::Overflow("query_mean"))?;
        let covariance = mean.checked_mul(head_dim).ok_or(Error::Overflow("query_covariance"))?;
        for (what, need, got) in [
            ("column_sums", rows, o.column_sums.len()),
            ("query_mean", mean, o.query_mean.len()),
            ("query_covariance", covariance, o.query_covariance.len()),
            ("output_norms", rows, o.output_norms.len()),
            ("given", rows, o.given.len()),
            ("positions", rows, o.positions.len()),
            ("tags", rows, o.tags.len()),
            ("head_weights", n_kv_heads, o.head_weights.len()),
            ("head_budgets", n_kv_heads, o.head_budgets.len()),
            ("image_budgets", n_kv_heads, o.image_budgets.len()),
        ] {
            if got != 0 {
                same(what, need, got)?;
            }
        }
        let mut free = 0u64;
        for (head, (&start, &len)) in (0u32..).zip(self.starts.iter().zip(self.lens)) {
            let end = u64::from(start).saturating_add(u64::from(len));
            if u64::from(start) < free || usize::try_from(end).map_or(true, |end| end > rows) {
                return Err(Error::HeadRange { head, start, len, rows });
            }
            free = end;
        }
        Ok(rows)
    }

    pub(crate) fn heads(&self) -> impl Iterator<Item = Head> + Clone + use<'a> {
        heads(self.starts, self.lens)
    }

    /// Queries `t .. t + n` (0 = oldest recorded) of query head `q`.
    pub(crate) fn queries(&self, q: usize, t: usize, n: usize) -> &'a [f32] {
        part(
            self.observation.queries,
            q.saturating_mul(self.observation.n_queries).saturating_add(t),
            n,
            self.shape.head_dim,
        )
    }

    /// Whether a row carries one of these flags.
    pub(crate) fn tagged(&self, row: usize, flags: u8) -> bool {
        self.observation.tags.get(row).is_some_and(|t| t & flags != 0)
    }
}

impl<'a> Rows<'a> {
    /// Number of rows, if the slice holds whole ones.
    fn rows(&self, what: &'static str, head_dim: usize) -> Result<usize, Error> {
        let (elements, row) = match self {
            Self::F32(x) => (x.len(), head_dim),
            Self::F16(x) => (x.len(), head_dim),
            Self::BF16(x) => (x.len(), head_dim),
            Self::Q8_0(x) => (x.len(), q8_0_row(head_dim)?),
        };
        let rows = elements.checked_div(row).unwrap_or(0);
        same(what, rows.saturating_mul(row), elements)?;
        Ok(rows)
    }

    /// Rows `first .. first + n`; none if there are not as many.
    fn part(self, head_dim: usize, first: usize, n: usize) -> Rows<'a> {
        match self {
            Self::F32(x) => Self::F32(part(x, first, n, head_dim)),
            Self::F16(x) => Self::F16(part(x, first, n, head_dim)),
            Self::BF16(x) => Self::BF16(part(x, first, n, head_dim)),
            Self::Q8_0(x) => Self::Q8_0(part(x, first, n, q8_0_row(head_dim).unwrap_or(0))),
        }
    }

    /// Calls `f(i, tile)` with consecutive tiles of a head's first `n` rows as f32, `i` being the index of the
    /// tile's first row in the head. Other formats are widened into `scratch`, `[TILE_ROWS][head_dim]`.
    pub(crate) fn for_tiles(
        &self,
        d: Dispatch,
        head_dim: usize,
        head: Head,
        n: usize,
        scratch: &mut [f32],
        mut f: impl FnMut(usize, &[f32]),
    ) {
        self.for_steps(d, head_dim, head, n, TILE_ROWS, scratch, |i, rows, ahead| {
            kernels::prefetch(d, ahead);
            f(i, rows);
        });
    }

    /// As [`Self::for_tiles`], `step` rows at a time: `f(i, rows, ahead)`, where `ahead` is read next and not asked for
    /// yet; `scratch` is `[step][head_dim]`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn for_steps(
        &self,
        d: Dispatch,
        head_dim: usize,
        head: Head,
        n: usize,
        step: usize,
        scratch: &mut [f32],
        mut f: impl FnMut(usize, &[f32], Ahead),
    ) {
        let mut i = 0;
        while i < n {
            let take = step.min(n.saturating_sub(i));
            let first = head.start.saturating_add(i);
            let next = n.saturating_sub(i).saturating_sub(take).min(take);
            let ahead = self.ahead(head_dim, first.saturating_add(take), next);
            f(i, self.widened(d, head_dim, first, take, scratch), ahead);
            i = i.saturating_add(take);
        }
    }

    /// As [`Self::for_tiles`], but in a form that suits the level: `f(i, rows, tile, ahead)`, where `ahead` is read next and
    /// not asked for yet.
    pub(crate) fn for_native_tiles(
        &self,
        d: Dispatch,
        head_dim: usize,
        head: Head,
        n: usize,
        scratch: &mut [f32],
        mut f: impl FnMut(usize, usize, Tile<'_>, Ahead),
    ) {
        let mut i = 0;
        while i < n {
            let take = TILE_ROWS.min(n.saturating_sub(i));
            let first = head.start.saturating_add(i);
            let next = n.saturating_sub(i).saturating_sub(take).min(take);
            let ahead = self.ahead(head_dim, first.saturating_add(take), next);
            f(i, take, self.tile(d, head_dim, first, take, scratch), ahead);
            i = i.saturating_add(take);
        }
    }

    #[inline(never)]
    fn tile<'t>(&self, d: Dispatch, head_dim: usize, first: usize, n: usize, scratch: &'t mut [f32]) -> Tile<'t>
    where
        'a: 't,
    {
        match (self, d.native()) {
            (Self::F16(x), Some(native)) => Tile::F16(native, part(x, first, n, head_dim)),
            (Self::BF16(x), Some(native)) => Tile::BF16(native, part(x, first, n, head_dim)),
            _ => Tile::F32(d, self.widened(d, head_dim, first, n, scratch)),
        }
    }

    #[inline(never)]
    fn widened<'t>(&self, d: Dispatch, head_dim: usize, first: usize, n: usize, scratch: &'t mut [f32]) -> &'t [f32]
    where
        'a: 't,
    {
        let out = scratch.get_mut(..n.saturating_mul(head_dim)).unwrap_or_default();
        match self {
            Self::F32(x) => return part(x, first, n, head_dim),
            Self::F16(x) => kernels::widen_f16(d, part(x, first, n, head_dim), out),
            Self::BF16(x) => kernels::widen_bf16(d, part(x, first, n, head_dim), out),
            Self::Q8_0(x) => kernels::widen_q8_0(d, part(x, first, n, q8_0_row(head_dim).unwrap_or(0)), out),
        }
        out
    }

    /// So many rows, as memory.
    pub(crate) fn ahead(&self, head_dim: usize, first: usize, n: usize) -> Ahead {
        match self {
            Self::F32(x) => Ahead::of(part(x, first, n, head_dim)),
            Self::F16(x) => Ahead::of(part(x, first, n, head_dim)),
            Self::BF16(x) => Ahead::of(part(x, first, n, head_dim)),
            Self::Q8_0(x) => Ahead::of(part(x, first, n, q8_0_row(head_dim).unwrap_or(0))),
        }
    }
}

/// The heads of a checked layer.
pub(crate) fn heads<'a>(starts: &'a [u32], lens: &'a [u32]) -> impl Iterator<Item = Head> + Clone + use<'a> {
    starts.iter().zip(lens).enumerate().map(|(index, (&start, &len))| Head {
        index,
        start: start as usize,
        len: len as usize,
    })
}

/// Bytes of a Q8_0 row.
fn q8_0_row(head_dim: usize) -> Result<usize, Error> {
    if !head_dim.is_multiple_of(Q8_0) {
        return Err(Error::Config("head_dim of Q8_0 rows must be a multiple of 32"));
    }
    Ok((head_dim / Q8_0).saturating_mul(Q8_0_BYTES))
}

/// Rows `first .. first + n` of `x`.
pub(crate) fn part<T>(x: &[T], first: usize, n: usize, row: usize) -> &[T] {
    let from = first.saturating_mul(row);
    x.get(from..from.saturating_add(n.saturating_mul(row))).unwrap_or_default()
}

/// Rows `first .. first + n` of `x`.
pub(crate) fn part_mut<T>(x: &mut [T], first: usize, n: usize, row: usize) -> &mut [T] {
    let from = first.saturating_mul(row);
    x.get_mut(from..from.saturating_add(n.saturating_mul(row))).unwrap_or_default()
}

fn same(what: &'static str, need: usize, got: usize) -> Result<(), Error> {
    if need == got { Ok(()) } else { Err(Error::LengthMismatch { what, need, got }) }
}
